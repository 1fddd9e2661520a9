"""Products and attention of a device opened as deterministic: a token's bits are the same alone and among any
number of others, by whichever kernel, and its numbers are those of the op's definition. On the device "dry",
which has CUDA's host code and tables: which kernels that is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from attention_cases import BLOCK, Tokens, attention_case
from devices import skip_without
from gpu_calls import COUNTS, PACKED, packed_kernels, product, weights_of
from kernel_cases import check
from one_step import Case, define, encode, f32, generator, kernels_of, run

from satchel.quant import FORMATS
from satchel.runtime.device.device import Device
from satchel.runtime.device.libraries import find_backend

DENSE = ("f16", "bf16")
OPS = ("linear", "linear_add", "linear_swiglu")
CACHES = ("f16", "bf16", "fp8", "q8_0", "q4_0")
# Across the borders of splits (512), steps (64) and tiles (128 tokens), in order and not; many short runs.
LONG: Tokens = [(0, p) for p in range(440, 1100)]
MIXED: Tokens = [(1, p) for p in range(50)] + [(0, 511), (0, 1100)] + [(2, p) for p in range(1000, 1200)]
SHORT: Tokens = [(s, 37 * s + p) for s in range(40) for p in range(3)]
FEW: Tokens = [(0, 2100), (1, 2), (1, 3), (2, 511), (2, 512), (3, 1023), (0, 64)]


@pytest.fixture(scope="module")
def fixed() -> Iterator[Device]:
    skip_without("cuda")
    with find_backend("cuda").open(deterministic=True) as device:
        yield device


@pytest.fixture(scope="module")
def dry_fixed() -> Iterator[Device]:
    skip_without("dry")
    with find_backend("dry").open(deterministic=True) as device:
        yield device


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("format", ["q4_k", "bf16"])
def test_products_of_any_number_of_tokens_have_kernels_of_one_order(
    dry_fixed: Device, format: str, op: str
) -> None:
    dense, tiles = ("_dense", "") if format == "bf16" else ("", "_fixed")
    for tokens in COUNTS:
        kind = next((n for n in (8, 16, 32, 64, 128) if n >= tokens), 0)
        want = f"columns_convert+columns{dense}_{kind}" if kind else f"wide_tiles{tiles}+{op}_fixed"
        want = f"columns{dense}_whole_8" if kind == 8 else want
        assert packed_kernels(dry_fixed, op, product(op, format, tokens, 512, 256))[0] == want


def test_rows_that_are_too_long_for_shared_memory_are_converted_before(dry_fixed: Device) -> None:
    one = product("linear", "q8_0", 1, 1 << 17, 8)
    assert packed_kernels(dry_fixed, "linear", one)[0] == "columns_convert+columns_8"


def test_products_that_one_of_them_cannot_take_have_another_kernel_for_all(dry_fixed: Device) -> None:
    """wide.cu writes pairs of numbers, so it takes no rows of odd length; columns.cu would."""
    for tokens in COUNTS:
        one = product("linear_add", "q4_k", tokens, 512, 255)
        assert packed_kernels(dry_fixed, "linear_add", one)[0] == "batch_convert+batch_64+batch_finish"


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("format", (*PACKED, *DENSE, "q4_k/q6_k"))
def test_a_tokens_products_are_the_same_among_any_others(fixed: Device, format: str, op: str) -> None:
    narrow = all(FORMATS[f].block <= 32 for f in format.split("/"))
    for k, n in ((512, 256), (2048, 520), (2304, 4100), *(((96, 40),) if narrow else ())):
        many = max(COUNTS)
        usual = product(op, format, many, k, n)
        packed = weights_of(usual)
        whole = run(fixed, op, usual, packed=packed)
        check(usual, whole, define(op, usual))
        wild = run(fixed, op, product(op, format, many, k, n, wild=True), packed=packed)
        for tokens in COUNTS[:-1]:
            for kind, want in ((False, whole), (True, wild)):
                part = run(fixed, op, product(op, format, tokens, k, n, wild=kind), packed=packed)
                assert part.tobytes() == want[:tokens].tobytes(), (tokens, k, n, kind)
        last = replace(
            usual,
            shape=(1, usual.shape[1]),
            inputs=tuple((a[-1:], f) if len(a) == many and f == "f32" else (a, f) for a, f in usual.inputs),
        )
        assert run(fixed, op, last, packed=packed).tobytes() == whole[-1:].tobytes()


def attention(
    format: str, heads: tuple[int, int, int], tokens: Tokens, *, sinks: bool = False, window: int = 0
) -> Case:
    rng = generator(f"{format} {heads} {tokens[:3]}")
    one = attention_case(rng, format, heads, tokens, scale=heads[2] ** -0.5, window=window)
    q, k, v, *rest = one.inputs
    _, kv, d = heads
    shape = (k[0].shape[0], kv, BLOCK, -1)
    caches = [(encode(format, f32(rng, shape[0] * kv * BLOCK, d)[0]).reshape(shape), format) for _ in (k, v)]
    more = [f32(rng, heads[0])] if sinks else []
    return replace(one, inputs=(q, *caches, *rest, *more), bound=1e-4)


def tokens_of(one: Case, which: list[int]) -> Case:
    q, k, v, slots, places, *rest = one.inputs
    some = [(np.ascontiguousarray(a[which]), f) for a, f in (q, slots, places)]
    return replace(one, inputs=(some[0], k, v, some[1], some[2], *rest), shape=(len(which), *one.shape[1:]))


@pytest.mark.parametrize(
    ("heads", "d"), [((8, 2), 64), ((71, 1), 64), ((4, 4), 128), ((96, 2), 128), ((4, 2), 96)]
)
def test_attention_of_any_number_of_tokens_has_kernels_of_one_order(
    dry_fixed: Device, heads: tuple[int, int], d: int
) -> None:
    able = d != 96 and heads != (71, 1)
    for tokens, names in ((FEW, ""), (LONG, f"attention_fixed_wide_{d}_f16+")):
        one = attention("f16", (*heads, d), tokens)
        found = kernels_of(dry_fixed, "attention", one)[0]
        assert found == (f"{names}attention_fixed_{d}_f16" if able else "attention")


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [(8, 2, 64), (9, 1, 128), (4, 4, 64)])
@pytest.mark.parametrize("format", CACHES)
def test_a_tokens_attention_is_the_same_among_any_others(
    fixed: Device, format: str, heads: tuple[int, int, int]
) -> None:
    for i, tokens in enumerate((LONG, MIXED, SHORT, FEW)):
        for window in (0, 700):
            one = attention(format, heads, tokens, sinks=i % 2 == 1, window=window)
            whole = run(fixed, "attention", one)
            check(one, whole, define("attention", one))
            n = len(tokens)
            for first, size in (
                (0, 1),
                (n // 2, 1),
                (n - 1, 1),
                (n // 3, 12),
                (n // 4, 20),
                (n // 2, n // 2),
            ):
                which = list(range(first, min(first + size, n)))
                part = run(fixed, "attention", tokens_of(one, which))
                assert part.tobytes() == whole[which].tobytes(), (i, window, first, size)
            some = [t for t in (71, 72, 73, 200, 511 - 440, 512 - 440, 1) if t < n]  # no runs
            assert run(fixed, "attention", tokens_of(one, some)).tobytes() == whole[some].tobytes(), (
                i,
                window,
            )
