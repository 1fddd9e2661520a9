"""Whole tiny models with each type of KV cache: plan = numpy, prefill = steps bit for bit; the rotation."""

from functools import cache

import numpy as np
import pytest
import tiny
from accuracy import nmse

from satchel.errors import RequestError
from satchel.quant import FORMATS
from satchel.quant.cache import CACHE_TYPES, ROTATED, encode_cache
from satchel.runtime import ops
from satchel.runtime.compiler.context import Context
from satchel.runtime.compiler.rotate import rotate
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import (
    Engine,
)
from satchel.runtime.graph import Array, Type, leaves, toposort
from satchel.runtime.layers.arch import Cache
from satchel.runtime.ops import evaluate

BACKENDS = [f.name for f in libraries() if f.name in ("cpu", "remote", "numba") and not f.reason]
IDS = [int(i) for i in np.random.default_rng(3).integers(0, tiny.VOCAB, 45)]
# How far the logits may be from those of an f32 cache; the second number: a backend's from numpy's of the
# same cache, for where float sums differ in the last bit a code may tip, and that is seen.
NOTHING = Context((), lambda node: "")  # the rotation asks no device
PAIRS = ("q8_0/q4_0", "f16/fp8", "q4_0/f32")
LOSS = {
    "q8_0/q4_0": (0.05, 0.02),
    "f16/fp8": (0.02, 2e-3),
    "q4_0/f32": (0.05, 0.02),
    "f32": (1e-11, 1e-9),
    "f16": (1e-5, 1e-6),
    "bf16": (1e-3, 1e-3),
    "q8_0": (1e-3, 1e-4),
    "fp8": (0.02, 2e-3),
    "q4_0": (0.05, 0.02),
}


def cache_of(kind: str) -> Cache:
    """kind: format of keys and values, or "keys/values"."""
    keys, _, values = kind.partition("/")
    return Cache(context=tiny.CONTEXT, slots=2, block=16, keys=keys, values=values or keys)


def open_engine(arch: str, kind: str, backend: str) -> Engine:
    return tiny.engine(arch, tiny.weights(arch), cache_of(kind), find_backend(backend).open(threads=2))


@cache
def oracle(arch: str, kind: str) -> Array:
    w = tiny.weights(arch)
    roots = rotate(tiny.build(arch, w, cache_of(kind)).roots("logits"), NOTHING)
    n, values = len(IDS), dict(w.tensors)
    for state in leaves(roots, "state"):
        stored = FORMATS[state.type.format]
        values[state.name] = np.zeros((*state.shape[:-1], state.shape[-1] // stored.block), stored.dtype)
    values |= {"ids": np.array(IDS, np.int32), "pos": np.arange(n, dtype=np.int32)}
    values |= {"slot": np.zeros(n, np.int32), "rows": np.arange(n, dtype=np.int32)}
    values["table"] = np.arange(2 * cache_of(kind).table_width, dtype=np.int32).reshape(2, -1)
    return evaluate(roots[:1], values)[0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [*CACHE_TYPES, *PAIRS])
def test_the_plan_equals_numpy(kind: str, backend: str) -> None:
    engine = open_engine("qwen3", kind, backend)
    got = engine.logits([BatchEntry(0, IDS)])
    engine.close()
    assert nmse(got, oracle("qwen3", kind)) < LOSS[kind][1]
    assert nmse(got, oracle("qwen3", "f32")) < LOSS[kind][0]


@pytest.mark.skipif("cpu" not in BACKENDS, reason="needs the cpu backend")
@pytest.mark.parametrize("kind", [*CACHE_TYPES, *PAIRS])
def test_prefill_equals_steps_in_any_company(kind: str) -> None:
    """The same bits at once, in chunks and beside another sequence."""
    engine = open_engine("llama", kind, "cpu")
    whole = engine.logits([BatchEntry(0, IDS)])
    for size in (1, 7, 32):
        engine.rewind(0, 0)
        pieces = [engine.logits([BatchEntry(0, IDS[i : i + size])]) for i in range(0, len(IDS), size)]
        np.testing.assert_array_equal(np.concatenate(pieces), whole)
    engine.rewind(0, 0)
    both = engine.logits([BatchEntry(1, IDS[:9]), BatchEntry(0, IDS)])
    engine.close()
    np.testing.assert_array_equal(both[9:], whole)


@pytest.mark.parametrize("kind", ["q8_0", "f16", "q4_0/f32", "f16/fp8"])
@pytest.mark.parametrize("arch", ["llama", "gemma4", "deepseek2", "deepseek32"])
def test_the_compiler_rotates_heads_that_no_layer_rotates(arch: str, kind: str) -> None:
    if "/" in kind and arch.startswith("deepseek"):
        pytest.skip("one latent for keys and values")
    built = tiny.build(arch, tiny.weights(arch), cache_of(kind)).roots("tokens")
    assert not any(node.op == "hadamard" for node in toposort(built))
    steps = toposort(rotate(built, NOTHING))
    reading = [node for node in steps if node.op.endswith("attention") or node.op == "index_positions"]
    writing = [node for node in steps if node.op == "kv_write"]
    assert reading and writing
    for node, source in [*((n, n.src[0]) for n in reading), *((n, n.src[1]) for n in writing)]:
        cache = node.src[ops.OPS[node.op].cache][0]
        assert (source.op == "hadamard") == (cache.type.format in ROTATED)
    back = [node for node in steps if node.op == "hadamard" and node.src[0].op == "reshape"]
    summed = [n for n in reading if n.op != "index_positions" and n.src[2].type.format in ROTATED]
    assert [node.src[0].src[0] for node in back if node.src[0].src[0] in reading] == summed


def test_a_latent_that_no_rotation_fits() -> None:
    """The rank must be a multiple of the largest power of two that divides rank + RoPE."""
    built = tiny.build("deepseek2", tiny.weights("deepseek2"), cache_of("f16")).roots("tokens")
    attention = next(node for node in toposort(built) if node.op == "attention")
    q, width = attention.src[0], attention.src[0].width
    cache = q.graph.node("state", (), Type((4, 1, 16, width), "q8_0"), "odd")
    y = ops.attention(q, cache, cache, *attention.src[3:], scale=1.0, value=width - (width & -width) // 2)
    with pytest.raises(RequestError, match=f"a q8_0 cache cannot hold latents of {y.arg('value')}"):
        rotate((y,), NOTHING)


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_turning_spreads_an_outlier(kind: str) -> None:
    """One dimension of 30 times the others' size, as in keys, costs the others precision unless rotated."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((64, 2, 128)).astype(np.float32)
    x[..., 5] *= 30
    rotate, stored = ops.hadamard.define, FORMATS[kind]
    plain = stored.decode(encode_cache(x, stored))
    rotated = rotate(stored.decode(encode_cache(rotate(x), stored)))
    rest = np.arange(128) != 5
    assert nmse(rotated[..., rest], x[..., rest]) < 0.4 * nmse(plain[..., rest], x[..., rest])


def test_turning_twice_is_nothing_and_products_stay() -> None:
    a, b = np.random.default_rng(2).standard_normal((2, 3, 4, 96)).astype(np.float32)
    rotate = ops.hadamard.define
    np.testing.assert_allclose(rotate(rotate(a)), a, atol=1e-6)
    np.testing.assert_allclose((rotate(a) * rotate(b)).sum(-1), (a * b).sum(-1), atol=1e-4)


def test_a_cache_that_cannot_be() -> None:
    w = tiny.weights("llama")
    with pytest.raises(RequestError, match="cache type 'q5_0' is not known: there are f16"):
        tiny.build("llama", w, cache_of("q5_0"))
    with pytest.raises(RequestError, match=r"q4_0 cache holds heads of a multiple of 32, .* have 40"):
        tiny.build("llama", w, cache_of("q4_0"), attention__key_length=40)
    with pytest.raises(RequestError, match="q6_k is no cache type"):
        encode_cache(np.zeros((1, 256), np.float32), FORMATS["q6_k"])


def test_fp8_is_the_nearest_of_its_numbers_and_ends_at_448() -> None:
    stored = FORMATS["fp8"]
    known = np.unique(stored.decode(np.arange(127, dtype=np.uint8)))
    rng = np.random.default_rng(5)
    x = np.concatenate(
        [rng.uniform(-460, 460, 500), rng.standard_normal(500), rng.standard_normal(500) / 500]
    )
    got = stored.decode(encode_cache(x.astype(np.float32), stored))
    nearest = np.abs(np.abs(x.astype(np.float32))[:, None] - known).min(axis=1)
    np.testing.assert_allclose(np.abs(got - x.astype(np.float32)), nearest, atol=1e-7)
    edges = np.array([448, 449, 3e38, -1e9, 2**-10, 3 * 2**-10, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(
        stored.decode(encode_cache(edges, stored)), [448, 448, 448, -448, 0, 2**-8, np.nan, np.nan]
    )
    every = np.arange(256, dtype=np.uint8)
    numbers = np.isfinite(stored.decode(every))
    np.testing.assert_array_equal(encode_cache(stored.decode(every), stored)[numbers], every[numbers])
