"""Products of two to four tokens by pairs of groups (gemv_pair.cuh): which calls get them, and that each has
the bits of a group by itself, because a chunk, a sum of squares and a sum over K have the same order.
"""

from __future__ import annotations

from dataclasses import replace

import fused_cases
import numpy as np
import pytest
from gpu_calls import PACKED, packed_kernels, product, weights_of
from one_step import Case, generator, kernels_of, run

from satchel.runtime.device.device import Device

OPS = ("linear", "linear_add", "linear_swiglu")
SIZES = ((256, 48), (768, 16), (2048, 2130), (4096, 272), (5120, 40), (6400, 40))  # K, N


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("format", ["q4_k", "q8_0", "q4_k/q6_k"])
def test_products_of_two_to_four_tokens_are_for_pairs(dry: Device, format: str, op: str) -> None:
    if op == "linear_add" and "/" in format:
        pytest.skip("it has one weight")
    name = "mixed" if "/" in format else format
    for tokens in (1, 2, 3, 4):
        one = product(op, format, tokens, 512, 256)
        found = packed_kernels(dry, op, one)[0]
        assert found == (f"gemv_{name}" if tokens == 1 else f"gemv_pair_{name}"), tokens


def equal(device: Device, op: str, one: Case, packed: tuple[int, ...]) -> None:
    kernels = kernels_of(device, op, one, packed)
    found = next((kernel for kernel in kernels if kernel.startswith("gemv_pair_")), None)
    if found is None:
        pytest.skip(f"{device.info().variant} has no pairs")
    alone = found.replace("pair_", "")
    assert alone in kernels
    results = [run(device, op, one, packed=packed, kernel=kernel) for kernel in (found, alone)]
    assert np.array_equal(results[0].view(np.uint8), results[1].view(np.uint8)), (op, one.name, one.shape)


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("format", [*PACKED, "q4_k/q6_k"])
def test_pairs_have_the_bits_of_a_group(cuda: Device, format: str, op: str) -> None:
    if op == "linear_add" and "/" in format:
        pytest.skip("it has one weight")
    for tokens in (2, 3, 4):
        for k, n in SIZES:
            one = product(op, format, tokens, k, n)
            equal(cuda, op, one, weights_of(one))


@pytest.mark.gpu
@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("formats", [("q4_k", "q4_k"), ("q8_0", "q8_0"), ("q4_k", "q6_k")])
def test_pairs_have_the_bits_of_a_group_with_a_norm(
    cuda: Device, formats: tuple[str, str], gated: bool, post: bool
) -> None:
    op = f"{'post_' * post}norm_linear{'_swiglu' * gated}"
    for tokens in (2, 3, 4):
        for k, n in ((256, 48), (768, 16), (4096, 272), (5120, 40)):
            rng = generator(f"{op} {formats} {tokens}")
            one = (fused_cases.posted if post else fused_cases.normed)(rng, formats, tokens, k, n)
            one = replace(one, shape=(tokens, (n if gated else 2 * n) + (k if post else 0)))
            equal(cuda, op, one, (1, 2))
