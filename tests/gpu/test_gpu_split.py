"""Products of two to four tokens whose groups split K (gemv_split.cuh): which calls get them, and that their
numbers are the definition's.
"""

from __future__ import annotations

from dataclasses import replace

import fused_cases
import numpy as np
import pytest
from gpu_calls import PACKED, packed_kernels, product, weights_of
from kernel_cases import check
from one_step import Case, define, generator, kernels_of, run

from satchel.runtime.device.device import Device

OPS = ("linear", "linear_add", "linear_swiglu")
BOUND = 1e-3  # nmse: as of the other kernels of few tokens


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("format", ["q4_k", "q6_k", "q8_0", "q4_k/q6_k"])
def test_long_rows_of_two_to_four_tokens_are_split(dry: Device, format: str, op: str) -> None:
    if op == "linear_add" and "/" in format:
        pytest.skip("it has one weight")
    name = "mixed" if "/" in format else format
    for tokens in (1, 2, 3, 4):
        for k, split in ((4096, False), (14336, tokens > 1)):
            one = product(op, format, tokens, k, 64)
            found = packed_kernels(dry, op, one)[0]
            kind = "gemv_split" if split else "gemv_pair" if tokens > 1 else "gemv"
            assert found == f"{kind}_{name}", (tokens, k)


@pytest.mark.parametrize(("tokens", "k", "split"), [(2, 8192, False), (3, 8192, True), (4, 5888, False)])
def test_shorter_rows_are_for_pairs(dry: Device, tokens: int, k: int, split: bool) -> None:
    """A 1B's down projection with two columns is one: 64 chunks times columns, of 96."""
    one = product("linear_add", "q6_k", tokens, k, 64)
    found = packed_kernels(dry, "linear_add", one)[0]
    assert found == ("gemv_split_q6_k" if split else "gemv_pair_q6_k")


def test_rows_that_no_group_has_room_for_are_split_among_more(dry: Device) -> None:
    for k, found in ((28672, "gemv_split_q6_k"), (1 << 17, "batch_convert+batch_16+batch_finish")):
        one = product("linear_add", "q6_k", 4, k, 16)
        assert packed_kernels(dry, "linear_add", one)[0] == found, k


def test_a_post_norm_needs_all_of_a_row(dry: Device) -> None:
    one = fused_cases.posted(generator("posted"), ("q4_k",), 2, 14336, 16)
    assert kernels_of(dry, "post_norm_linear", one, (1,))[0] == "gemv_pair_q4_k"


def check_split(device: Device, op: str, one: Case, packed: tuple[int, ...]) -> None:
    found = next((k for k in kernels_of(device, op, one, packed) if k.startswith("gemv_split_")), None)
    if found is None:
        pytest.skip(f"{device.info().variant} has no clusters")
    first, second = (run(device, op, one, packed=packed, kernel=found) for _ in range(2))
    check(one, first, define(op, one))
    assert np.array_equal(first.view(np.uint8), second.view(np.uint8)), one.name


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("format", [*PACKED, "q4_k/q6_k"])
def test_split_products_equal_their_definition(cuda: Device, format: str, op: str) -> None:
    """Parts of odd and even numbers of chunks, and several tiles a cluster."""
    if op == "linear_add" and "/" in format:
        pytest.skip("it has one weight")
    for tokens, k, n in ((2, 14336, 130), (3, 8448, 16), (4, 14336, 48), (4, 6144, 2130)):
        one = replace(product(op, format, tokens, k, n), bound=BOUND)
        check_split(cuda, op, one, weights_of(one))


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["norm_linear", "norm_linear_swiglu"])
@pytest.mark.parametrize("formats", [("q4_k", "q4_k"), ("q8_0", "q8_0"), ("q4_k", "q6_k")])
def test_split_products_with_a_norm_equal_their_definition(
    cuda: Device, formats: tuple[str, str], op: str
) -> None:
    for tokens, k, n in ((2, 14336, 130), (3, 8192, 16), (4, 6144, 48)):
        one = fused_cases.normed(generator(f"{op} {formats} {tokens}"), formats, tokens, k, n)
        one = replace(one, shape=(tokens, 2 * n if op == "norm_linear" else n), bound=BOUND)
        check_split(cuda, op, one, (1, 2))


@pytest.mark.gpu
def test_four_parts_equal_their_definition(cuda: Device) -> None:
    """Rows whose activations have room in a quarter of a cluster alone."""
    one = replace(product("linear_add", "q6_k", 4, 28672, 130), bound=BOUND)
    check_split(cuda, "linear_add", one, weights_of(one))
