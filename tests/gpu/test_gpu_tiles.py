"""Products of prompts by tiles (cext/cuda/wide.cu): those in FP8, which --precision fast allows, and those
that take the norm of their activations. Which calls get them, on the device "dry", which has CUDA's host code
and tables; `pytest -m gpu` computes by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import fused_cases
import numpy as np
import pytest
from accuracy import nmse
from devices import opened, skip_without
from eight_bits import check_tokens, halves
from gpu_calls import PACKED, packed_kernels, product, weights_of
from one_step import Case, define, generator, refused, run

from satchel.quant import FORMATS
from satchel.quant.format import F32
from satchel.runtime.device.device import Device
from satchel.runtime.device.libraries import find_backend

OPS = ("linear", "linear_add", "linear_swiglu")
DENSE = ("f16", "bf16")
LEAST = 129  # tokens
NORMED = ("norm_linear", "norm_linear_swiglu")
# NMSE where both operands have three bits of mantissa; a gate and an up multiply theirs. CLOSE: where they
# are rounded alike, so that only the sums of some 14 bits in the tensor core differ. ROUNDED: to bf16.
BOUND, GATED_BOUND, CLOSE, ROUNDED = 2e-3, 6e-3, 2e-4, 1e-3


@pytest.fixture(scope="module")
def fast() -> Iterator[Device]:
    with opened("cuda", fast=True) as device:
        yield device


def tiles_of(op: str, fast: bool = True) -> list[str]:
    """The kernels with wide and with narrow tiles."""
    stem, end = op.removeprefix("norm_"), "_fp8" if fast else ""
    return [f"wide_tiles{end}+{stem}_{width}{end}" for width in ("wide", "narrow")]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("format", [*PACKED, *DENSE])
def test_prompts_are_multiplied_in_fp8_where_fast_allows_it(format: str, op: str) -> None:
    with opened("dry", fast=True) as device:
        for tokens, n in ((LEAST, 40), (300, 272), (300, 4096)):
            first, *others = packed_kernels(device, op, product(op, format, tokens, 512, n))
            assert first in tiles_of(op), first
            assert set(tiles_of(op)) <= {first, *others}  # the tuner measures both
        few = packed_kernels(device, op, product(op, format, LEAST - 1, 512, 40))
    assert not any("_fp8" in kernel for kernel in few)


def test_they_are_for_precision_fast_alone_and_cards_with_wgmma(monkeypatch: pytest.MonkeyPatch) -> None:
    one = product("linear", "q4_k", 300, 512, 40)
    skip_without("dry")
    for arch, options in (
        ("90", {}),
        ("90", {"fast": True, "deterministic": True}),
        ("80", {"fast": True}),
        ("89", {"fast": True}),
        ("120", {"fast": True}),
    ):
        monkeypatch.setenv("SATCHEL_DRY_ARCH", arch)
        with find_backend("dry").open(**options) as device:
            kernels = packed_kernels(device, "linear", one)
        assert not any("wide_tiles_fp8" in kernel for kernel in kernels), arch


@pytest.mark.parametrize("format", ["q2_k", "f32", "f8_e4m3", "q4_k/q2_k"])
def test_weights_in_another_order_stay_exact(format: str) -> None:
    with opened("dry", fast=True) as device:
        kernels = packed_kernels(device, "linear", product("linear", format, 300, 512, 40))
    assert not any("wide_tiles_fp8" in kernel for kernel in kernels)


def test_logits_of_a_vocabulary_stay_exact() -> None:
    """Of 16 times as many columns as x has, and more."""
    with opened("dry", fast=True) as device:
        for n, exact in ((512, False), (520, True)):  # of two weights
            found = packed_kernels(device, "linear", product("linear", "q8_0", 300, 64, n))[0]
            assert found.startswith("wide_tiles+" if exact else "wide_tiles_fp8+"), found


def normed(op: str, format: str, tokens: int, k: int, n: int) -> Case:
    """A product with its norm."""
    one = fused_cases.normed(generator(f"{op} {format} {tokens} {k}"), (format, format), tokens, k, n)
    return replace(one, shape=(tokens, 2 * n if op == "norm_linear" else n))


@pytest.mark.parametrize("fast", [False, True], ids=["exact", "fast"])
@pytest.mark.parametrize("op", NORMED)
@pytest.mark.parametrize("format", [*PACKED, *DENSE])
def test_products_of_prompts_take_a_norm(format: str, op: str, fast: bool) -> None:
    with opened("dry", fast=fast) as device:
        for tokens, n in ((LEAST, 40), (300, 1024)):
            one = normed(op, format, tokens, 512, n)
            found = packed_kernels(device, op, one)
            assert found[0] in tiles_of(op, fast) and set(tiles_of(op, fast)) <= set(found)


@pytest.mark.parametrize("format", ["q2_k", "f32", "f8_e4m3"])
def test_products_of_weights_with_kernels_of_their_own_take_none(dry: Device, format: str) -> None:
    one = normed("norm_linear", format, 300, 512, 40)
    assert refused(dry, "norm_linear", one)


# --- on a card


def rows_rounded(x: F32) -> F32:
    """x (R, K) rounded to E4M3 with one scale a row, which maps its largest number to 448."""
    return halves(x, 1, x.shape[1])


def shapes() -> Iterator[tuple[int, int, int]]:
    """Tokens, K and N: odd ones, of no whole tile or chunk, and a long K."""
    yield from ((LEAST, 96, 34), (200, 544, 130), (257, 1024, 272), (300, 4096, 520), (140, 14336, 70))


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("format", [*PACKED, *DENSE, "q4_k/q6_k"])
def test_products_are_near_their_definition(fast: Device, format: str, op: str) -> None:
    if "/" in format and op == "linear_add":
        pytest.skip("it has one weight")
    bound = GATED_BOUND if op == "linear_swiglu" else BOUND
    for tokens, k, n in shapes():
        if k % FORMATS[format.split("/")[0]].block or k % FORMATS[format.split("/")[-1]].block:
            continue
        one = product(op, format, tokens, k, n)
        want = define(op, one)
        for kernel in tiles_of(op):
            assert kernel in packed_kernels(fast, op, one)
            got = run(fast, op, one, packed=weights_of(one), kernel=kernel)
            assert nmse(got, want) <= bound, f"{one.name} {kernel}"


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("format", DENSE)
def test_products_equal_those_of_rounded_operands(fast: Device, format: str, op: str) -> None:
    """There are zeros, tiny, huge and outlying activations."""
    for tokens, k, n in shapes():
        one = product(op, format, tokens, k, n, wild=True)
        (x, _), *others = one.inputs
        rounded = [(rows_rounded(FORMATS[f].decode(a)), "f32") if f == format else (a, f) for a, f in others]
        with np.errstate(over="ignore", invalid="ignore"):
            want = define(op, replace(one, inputs=((rows_rounded(x), "f32"), *rounded)))
        for kernel in tiles_of(op):
            check_tokens(one, run(fast, op, one, kernel=kernel), want, CLOSE)


@pytest.mark.gpu
@pytest.mark.parametrize("format", ["q4_k", "q8_0", "bf16"])
def test_an_activation_that_is_not_finite_reaches_its_token_alone(fast: Device, format: str) -> None:
    one = product("linear", format, 200, 512, 48)
    x = np.array(one.inputs[0][0])
    x[3, 100], x[150, 300] = np.inf, np.nan
    one = replace(one, inputs=((x, "f32"), *one.inputs[1:]))
    for kernel in tiles_of("linear"):
        got = run(fast, "linear", one, packed=weights_of(one), kernel=kernel)
        assert np.isnan(got[[3, 150]]).all() and np.isfinite(np.delete(got, [3, 150], 0)).all()


@pytest.mark.gpu
def test_a_tokens_bits_do_not_depend_on_the_tiles_or_the_other_tokens(fast: Device) -> None:
    one = product("linear", "q6_k", 300, 1024, 272)
    few = product("linear", "q6_k", 140, 1024, 272)
    got = [
        run(fast, "linear", call, packed=weights_of(call), kernel=kernel)[:140]
        for call in (one, few)
        for kernel in tiles_of("linear")
    ]
    assert all(np.array_equal(got[0], other) for other in got[1:])


@pytest.mark.gpu
@pytest.mark.parametrize("fast", [False, True], ids=["exact", "fast"])
@pytest.mark.parametrize("op", NORMED)
@pytest.mark.parametrize("format", [*PACKED, *DENSE])
def test_products_of_prompts_with_a_norm_equal_their_definition(format: str, op: str, fast: bool) -> None:
    with opened("cuda", fast=fast) as device:
        for tokens, k, n in ((LEAST, 256, 34), (200, 1024, 272), (140, 8192, 130)):
            one, gated = normed(op, format, tokens, k, n), op == "norm_linear_swiglu"
            want = define(op, one)
            for kernel in tiles_of(op, fast):
                got = run(device, op, one, packed=weights_of(one), kernel=kernel)
                named = replace(one, name=f"{one.name} {kernel}")
                if fast:  # a token's few gated columns may be far off, where its sums cancel
                    assert nmse(got, want) <= (GATED_BOUND if gated else BOUND), named.name
                else:
                    check_tokens(named, got, want, ROUNDED)
