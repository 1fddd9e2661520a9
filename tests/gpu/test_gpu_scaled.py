"""Mixtures' products of MXFP4 weights by block-scaled tensor cores (cext/cuda/expert_scaled.cu): which calls
get them, on the device "dry", which has CUDA's host code and tables. `pytest -m gpu` computes by the same
kernels as a card of 8.9, where FP8 tensor cores stand in for the one instruction that 12.0 has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from devices import opened
from eight_bits import check_tokens, mxfp8
from expert_cases import choose, elsewhere, stack
from one_step import Case, define, extremes, generator, kernels_of, run

from satchel.runtime.device.device import Device

OPS = {"expert_linear": 1, "expert_swiglu": 2}  # their weights
BOUND = 1e-8  # nmse of a token: only float32 sums are rounded
TILES = {n: f"expert_list_scaled_{n}+expert_scaled_{n}_mxfp4" for n in (32, 64)}


def mixture(
    op: str,
    tokens: int,
    k: int,
    n: int,
    of: tuple[int, int],
    *,
    own: bool = False,
    wild: bool = False,
) -> Case:
    """A call with usual numbers. of: experts of a token, and in all; own: each has an input row; wild: there
    are rows of zeros, of tiny, huge and outlying numbers, and weights' scales over 36 powers of two.
    """
    rng = generator(f"{op} {tokens} {k} {n} {of} {own} {wild}")
    used, experts = of
    rows = tokens * used if own else tokens
    x = extremes(rng, rows, k) if wild else rng.standard_normal((rows, k)).astype(np.float32)
    x = x.reshape((tokens, used, k) if own else (tokens, k))
    stacks = [stack(rng, "mxfp4", experts, n, k) for _ in range(OPS[op])]
    for array, _ in stacks:
        if wild:
            array["e"] = 100 + rng.integers(0, 36, array["e"].shape)
        elif op == "expert_swiglu":  # the gate's input is near 1
            array["e"] -= 6
    name = f"{op} {tokens}x{k}x{n} {of}{' own' * own}{' wild' * wild}"
    return Case(name, ((x, "f32"), *stacks, choose(rng, tokens, experts, used)), (tokens, used, n))


def weights_of(op: str) -> tuple[int, ...]:
    return tuple(range(1, 1 + OPS[op]))


@pytest.fixture(params=["12.0", "12.1"])
def newest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    monkeypatch.setenv("SATCHEL_DRY_ARCH", request.param.replace(".", ""))
    with opened("dry", fast=True) as device:
        yield device


@pytest.mark.parametrize("op", OPS)
def test_prompts_of_mixtures_in_mxfp4_have_block_scaled_tensor_cores_on_12(newest: Device, op: str) -> None:
    """Few pairs of token and expert have groups of their own; narrow tiles are for few pairs of an expert."""
    for tokens, found in ((8, "experts_few_mxfp4"), (100, TILES[32]), (400, TILES[64])):
        one = mixture(op, tokens, 512, 64, (4, 32))
        assert kernels_of(newest, op, one, weights_of(op))[0] == found, tokens
    many = mixture(op, 400, 512, 64, (2, 1100))  # more experts than a list of pairs has
    assert kernels_of(newest, op, many, weights_of(op))[0] == "experts_many_mxfp4"


@pytest.mark.parametrize("op", OPS)
def test_they_are_for_precision_fast_and_cards_that_have_them(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card of 8.9 computes the same another way, which a kernel override may choose."""
    one = mixture(op, 400, 512, 64, (4, 32))
    for arch, fast, able in (
        ("120", False, False),
        ("100", True, False),
        ("90", True, False),
        ("89", True, True),
        ("89", False, False),
        ("86", True, False),
    ):
        monkeypatch.setenv("SATCHEL_DRY_ARCH", arch)
        with opened("dry", fast=fast) as device:
            first, *others = kernels_of(device, op, one, weights_of(op))
        assert "scaled" not in first, arch
        assert (TILES[64] in others, TILES[32] in others) == (able, able), arch


# --- on a card


def cases(op: str) -> Iterator[Case]:
    """Experts that nobody chose, of one pair and of several tiles; odd numbers of rows; K of one block, and
    of no whole number of chunks.
    """
    for tokens, k, n, of in (
        (3, 32, 33, (2, 5)),
        (40, 256, 48, (8, 128)),
        (130, 544, 130, (2, 5)),
        (300, 2880, 272, (4, 32)),
        (600, 1056, 144, (1, 4)),
    ):
        yield mixture(op, tokens, k, n, of)
        if op == "expert_linear":
            yield mixture(op, tokens, k, n, of, own=True)
    yield elsewhere(generator("elsewhere"), mixture(op, 90, 512, 70, (3, 6)), 0.5)
    if op == "expert_linear":
        yield mixture(op, 77, 544, 100, (3, 4), wild=True)
        yield mixture(op, 77, 320, 100, (3, 4), own=True, wild=True)


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
def test_products_equal_their_definition(op: str) -> None:
    """Which is the op's, of activations that are rounded to MXFP8."""
    with opened("cuda 8.9", fast=True) as device:
        for one in cases(op):
            (x, format), *others = one.inputs
            want = define(op, replace(one, inputs=((mxfp8(x), format), *others)))
            for kernel in TILES.values():
                assert kernel in kernels_of(device, op, one, weights_of(op))
                how = replace(one, name=f"{one.name} {kernel}")
                check_tokens(how, run(device, op, one, packed=weights_of(op), kernel=kernel), want, BOUND)


@pytest.mark.gpu
def test_an_activation_that_is_not_finite_reaches_its_token_alone() -> None:
    one = mixture("expert_linear", 50, 512, 48, (2, 3))
    x = np.array(one.inputs[0][0])
    x[3, 100], x[7, 300] = np.inf, np.nan
    one = replace(one, inputs=((x, "f32"), *one.inputs[1:]))
    with opened("cuda 8.9", fast=True) as device:
        for kernel in TILES.values():
            got = run(device, "expert_linear", one, packed=(1,), kernel=kernel)
            assert np.isnan(got[[3, 7]]).all() and np.isfinite(np.delete(got, [3, 7], 0)).all()


@pytest.mark.gpu
def test_a_tokens_bits_do_not_depend_on_its_tile() -> None:
    one = mixture("expert_linear", 200, 544, 130, (2, 5))
    few = replace(
        one,
        inputs=tuple((a[:41], f) if i != 1 else (a, f) for i, (a, f) in enumerate(one.inputs)),
        shape=(41, *one.shape[1:]),
    )
    with opened("cuda 8.9", fast=True) as device:
        got = [
            run(device, "expert_linear", call, packed=(1,), kernel=kernel)[:41]
            for call in (one, few)
            for kernel in TILES.values()
        ]
    assert all(np.array_equal(got[0], other) for other in got[1:])
