"""Whole tiny models of every architecture on real backends: prefill = steps, batch = alone, plan = numpy."""

import gc
from dataclasses import replace
from mmap import PAGESIZE
from typing import Any

import numpy as np
import pytest
import tiny
from accuracy import nmse
from devices import skip_without
from tiny_grown import SPECS

from satchel.errors import DeviceError, RequestError
from satchel.runtime.device.device import STATE, Buffer, Device, PinnedMemory
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.engine import program
from satchel.runtime.engine.batch_entry import LAST, BatchEntry
from satchel.runtime.engine.engine import (
    Engine,
    bucket_of,
)
from satchel.runtime.engine.program import DeviceMemory
from satchel.runtime.graph import Array, leaves
from satchel.runtime.kv import Pages
from satchel.runtime.layers.arch import Cache, architectures, find_arch, windows_of
from satchel.runtime.ops import evaluate
from satchel.runtime.sampling import GREEDY, Sampling

CACHE = Cache(context=tiny.CONTEXT, slots=4, block=16)
BACKENDS = [f.name for f in libraries() if f.name in ("cpu", "remote") and not f.reason]
FORMATS = ["f32", "bf16", "q8_0", "q4_k"]
# What reads a text as a whole has tests of its own: tests/formats/convert/test_mixed_families.py.
DECODERS = [name for name in architectures() if find_arch(name).causal]

pytestmark = pytest.mark.skipif(not BACKENDS, reason="no compiled backend is installed")

WIDTHS = {"f16": np.float16, "f32": np.float32, "i32": np.int32}


def open_engine(
    arch: str,
    format: str = "f32",
    backend: str = BACKENDS[0] if BACKENDS else "",
    cache: Cache = CACHE,
    **more,
) -> Engine:
    device = find_backend(backend).open(threads=2)
    return tiny.engine(arch, tiny.weights(arch, format, mixed=format == "q4_k"), cache, device, **more)


@pytest.fixture
def ids() -> list[int]:
    return [int(i) for i in np.random.default_rng(3).integers(0, tiny.VOCAB, 45)]


def oracle(arch: str, format: str, ids: list[int], cache: Cache = CACHE) -> Array:
    """Logits after each token by the numpy definitions, from the graph before any pass."""
    w = tiny.weights(arch, format, mixed=format == "q4_k")
    forward = tiny.build(arch, w, cache)
    n = len(ids)
    values: dict[str, Array] = dict(w.tensors)
    roots = forward.roots("logits")
    for state in leaves(roots, "state"):
        values[state.name] = np.zeros(state.shape, WIDTHS[state.type.format])
    values |= {"ids": np.array(ids, np.int32), "pos": np.arange(n, dtype=np.int32)}
    values |= {"slot": np.zeros(n, np.int32), "rows": np.arange(n, dtype=np.int32)}
    pages = Pages(cache, windows_of(roots))
    pages.reserve(0, n)
    pages.advance(0, 0, n)
    values |= pages.tables
    return evaluate(roots[:1], values)[0]


def grid(formats: list[str], few: str) -> list[tuple[str, str, str]]:
    """(architecture, format, backend): those whose layer is Llama's in all formats on all backends, each
    other one once.
    """
    plain = [a for a in DECODERS if a not in SPECS]
    return [
        *((a, format, backend) for a in plain for format in formats for backend in BACKENDS),
        *((a, few, backend) for a in DECODERS if a in SPECS for backend in BACKENDS[:1]),
    ]


@pytest.mark.parametrize(("arch", "format", "backend"), grid(["f32", "q8_0"], "f32"))
def test_the_plan_equals_numpy(arch: str, format: str, backend: str, ids: list[int]) -> None:
    """q8_0: numpy multiplies unrounded activations there, so the bound is that of rounding them to 8 bits.
    f32: the cache has 32 bits too, for one of 16 shows how a sum's last bit was rounded: CPUs differ there.
    """
    cache = replace(CACHE, keys="f32", values="f32") if format == "f32" else CACHE
    engine = open_engine(arch, format, backend, cache)
    got = engine.logits([BatchEntry(0, ids)])
    engine.close()
    assert nmse(got, oracle(arch, format, ids, cache)) < (1e-9 if format == "f32" else 2e-3)


@pytest.mark.parametrize(("arch", "format", "backend"), grid(FORMATS, "q4_k"))
def test_prefill_equals_steps(arch: str, format: str, backend: str, ids: list[int]) -> None:
    engine = open_engine(arch, format, backend)
    whole = engine.logits([BatchEntry(0, ids)])
    engine.rewind(0, 0)
    steps = np.concatenate([engine.logits([BatchEntry(0, [i])]) for i in ids])
    engine.rewind(0, 0)
    chunks = np.concatenate([engine.logits([BatchEntry(0, ids[i : i + 7])]) for i in range(0, len(ids), 7)])
    engine.close()
    assert nmse(steps, whole) < 1e-9 and nmse(chunks, whole) < 1e-9


@pytest.mark.parametrize(
    ("arch", "format"), [c[:2] for c in grid(["f32", "q4_k"], "q8_0") if c[2] == BACKENDS[0]]
)
def test_a_batch_equals_each_alone(arch: str, format: str) -> None:
    rng = np.random.default_rng(5)
    prompts = [[int(i) for i in rng.integers(0, tiny.VOCAB, n)] for n in (1, 9, 20, 33)]
    engine = open_engine(arch, format)
    together = engine.logits([BatchEntry(slot, p) for slot, p in enumerate(prompts)])
    again = engine.logits([BatchEntry(slot, [7]) for slot in range(4)])
    engine.close()
    alone = open_engine(arch, format)
    at = 0
    for slot, p in enumerate(prompts):
        alone.rewind(0, 0)
        np.testing.assert_array_equal(alone.logits([BatchEntry(0, p)]), together[at : at + len(p)])
        np.testing.assert_array_equal(alone.logits([BatchEntry(0, [7])])[0], again[slot])
        at += len(p)
    alone.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_sampled_needs_no_way_through_the_host(backend: str, ids: list[int]) -> None:
    """A step with input LAST takes the token that the slot sampled, with the same tokens as through the
    host.
    """
    runs = []
    for feed_host in (True, False):
        engine = open_engine("qwen3", "q8_0", backend)
        token = engine.step([BatchEntry(0, ids, GREEDY)])[0]
        out = [token]
        for _ in range(20):
            token = engine.step([BatchEntry(0, [token if feed_host else LAST], GREEDY)])[0]
            out.append(token)
        engine.close()
        runs.append(out)
    assert runs[0] == runs[1] and len(set(runs[0])) > 1


def test_a_rewound_slot_forgets(ids: list[int]) -> None:
    engine = open_engine("llama")
    first = engine.logits([BatchEntry(0, ids)])
    engine.logits([BatchEntry(1, ids[::-1])])
    engine.rewind(0, 20)
    np.testing.assert_array_equal(engine.logits([BatchEntry(0, ids[20:])]), first[20:])
    with pytest.raises(RequestError, match="cannot go back"):
        engine.rewind(0, 46)
    engine.close()


def test_seeds_decide_and_nothing_else(ids: list[int]) -> None:
    """Sampled tokens depend on seed and position, not on slot, batch or what ran before."""
    hot = Sampling(temperature=2.0, top_k=0, top_p=1, min_p=0, seed=11)
    engine = open_engine("llama", "q8_0")

    def run(slots: list[int]) -> list[list[int]]:
        tokens = engine.step([BatchEntry(s, ids, hot) for s in slots][:1])
        if len(slots) > 1:
            tokens += engine.step([BatchEntry(slots[1], ids, hot)])
        out = [tokens]
        for _ in range(10):
            tokens = engine.step([BatchEntry(s, [t], hot) for s, t in zip(slots, tokens, strict=True)])
            out.append(tokens)
        for s in slots:
            engine.rewind(s, 0)
        return out

    alone = [t[0] for t in run([0])]
    pair = run([2, 1])
    engine.close()
    assert [p[0] for p in pair] == alone and [p[1] for p in pair] == alone and len(set(alone)) > 3


def test_a_context_that_is_full_is_an_error_and_nothing_is_fed(ids: list[int]) -> None:
    engine = open_engine("llama", batch=64)
    engine.step([BatchEntry(0, ids)])
    engine.step([BatchEntry(0, ids)])
    with pytest.raises(RequestError, match="do not fit the context of 96"):
        engine.step([BatchEntry(0, ids[:7])])
    assert engine.length(0) == 90
    with pytest.raises(RequestError, match="1 to 64 tokens, got 65"):
        engine.step([BatchEntry(1, [1] * 65)])
    engine.close()


def test_a_thousand_steps_allocate_nothing(ids: list[int]) -> None:
    engine = open_engine("qwen2", "q8_0")
    engine.step([BatchEntry(0, ids[:4], GREEDY)])
    token = engine.step([BatchEntry(0, [1], GREEDY)])[0]
    device = next(iter(engine._memory.values())).device
    before = device.info().allocations
    gc.collect()
    for _ in range(1000):
        if engine.length(0) >= 90:
            engine.rewind(0, 5)
        token = engine.step([BatchEntry(0, [token], GREEDY)])[0]
    assert device.info().allocations == before > 0
    engine.close()


@pytest.mark.skipif(len(BACKENDS) < 2, reason="needs the cpu and the remote backend")
@pytest.mark.parametrize("arch", DECODERS)
def test_layers_on_two_devices_give_the_same(arch: str, ids: list[int]) -> None:
    one = open_engine(arch, "q8_0", "cpu")
    wanted = one.logits([BatchEntry(0, ids)])
    one.close()
    devices = [find_backend(n).open(threads=1) for n in ("cpu", "remote")]
    two = tiny.engine(
        arch,
        tiny.weights(arch, "q8_0"),
        CACHE,
        *devices,
        wanted=lambda node: "remote" if node.name == "blk.1" else "cpu",
    )
    got = two.logits([BatchEntry(0, ids)])
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    tokens = [two.step([BatchEntry(1, ids, GREEDY)])[0]]
    tokens += [two.step([BatchEntry(1, [LAST], GREEDY)])[0] for _ in range(5)]
    assert tokens[0] == int(wanted[-1].argmax()) and len(tokens) == 6
    two.close()


@pytest.mark.skipif(len(BACKENDS) < 2, reason="needs the cpu and the remote backend")
def test_what_crosses_is_in_the_hosts_memory_once(ids: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The other device copies to and from where the host's plan has it."""
    devices = [find_backend(n).open(threads=1) for n in ("cpu", "remote")]
    engine = tiny.engine(
        "llama",
        tiny.weights("llama", "q8_0"),
        CACHE,
        *devices,
        wanted=lambda node: "remote" if node.name in ("blk.0", "output") else "cpu",
    )
    wanted = engine.logits([BatchEntry(0, ids)])
    engine.rewind(0, 0)
    written, write = list[str](), Buffer.write

    def noted(self: Buffer, offset: int, data: Any) -> None:
        written.append(self.device.name)
        write(self, offset, data)

    monkeypatch.setattr(Buffer, "write", noted)
    assert engine.logits([BatchEntry(0, ids)]).tobytes() == wanted.tobytes()
    assert set(written) == {"remote"}
    engine.close()


@pytest.mark.parametrize("locks", [True, False])
def test_the_pages_of_what_crosses_are_locked(
    locks: bool, ids: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    skip_without("emulated")
    pinned, pin = list[int](), Device.pin

    def noted(self: Device, memory: Any, start: int, size: int, writable: bool = False) -> PinnedMemory:
        if not locks:
            raise DeviceError("the driver has no pages left")
        assert writable and start == 0 and size % PAGESIZE == 0
        pinned.append(size)
        return pin(self, memory, start, size, writable)

    monkeypatch.setattr(Device, "pin", noted)
    found = []
    for least in (1 << 40, 1):
        monkeypatch.setattr(program, "LOCKED", least)
        devices = [find_backend(n).open(threads=1) for n in ("cpu", "emulated")]
        engine = tiny.engine(
            "llama",
            tiny.weights("llama", "q8_0"),
            CACHE,
            *devices,
            wanted=lambda node: "emulated" if node.name in ("blk.0", "output") else "cpu",
        )
        found.append(engine.logits([BatchEntry(0, ids)]).tobytes())
        assert bool(pinned) == (locks and least == 1)
        engine.close()
    assert found[0] == found[1]
    assert ("values between cpu and emulated are copied twice" in caplog.text) == (not locks)


def test_the_null_backend_runs_everything() -> None:
    skip_without("null")
    engine = open_engine("llama", backend="null")
    assert engine.step([BatchEntry(0, [1, 2, 3], GREEDY)]) == [0]
    engine.close()


def test_an_unknown_device_lists_what_there_is() -> None:
    with pytest.raises(DeviceError, match=r"'abacus': no such backend is installed; there is .*numba"):
        find_backend("abacus")


@pytest.mark.parametrize(
    ("n", "bucket"), [(1, 1), (2, 2), (3, 4), (64, 64), (65, 128), (500, 512), (512, 512)]
)
def test_buckets_are_powers_of_two(n: int, bucket: int) -> None:
    assert bucket_of(n, 512) == bucket


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cache_without_room_says_what_needs_less(backend: str) -> None:
    with find_backend(backend).open() as device:
        with pytest.raises(DeviceError, match=r"no room for the KV cache; a smaller context \(-c\)"):
            DeviceMemory(device, 1 << 60)
        with pytest.raises(DeviceError, match="cannot allocate"):
            device.alloc(1 << 60, STATE)
