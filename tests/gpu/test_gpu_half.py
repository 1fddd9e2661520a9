"""Products of K quants with 5 to 32 tokens on Hopper (columns_half.cu): which calls get them (on the device
"dry"), and with `pytest -m gpu` their results beside the definition, closer than products of bfloat16 come.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpu_calls import PACKED, product, weights_of
from kernel_cases import check
from one_step import Case, define, pack_inputs, plan_of, run

from satchel.runtime.device.device import Device

HALF = ("q4_k", "q5_k", "q6_k")
BOUND = 1e-6  # nmse; activations are rounded to 11 bits, weights are exact
OPS = ("linear", "linear_add", "linear_swiglu")


def kernel_of(device: Device, op: str, one: Case) -> str:
    return device.kernels(pack_inputs(device, one, plan_of(op, one, 64)[0], weights_of(one)), 0)[0]


@pytest.mark.parametrize("op", OPS)
def test_few_tokens_of_k_quants_are_multiplied_as_halves(dry: Device, op: str) -> None:
    for format in (*PACKED, *(("q4_k/q6_k", "q4_k/q8_0") if op == "linear" else ())):
        for tokens, columns in ((5, 8), (8, 8), (9, 16), (16, 16), (17, 32), (32, 32)):
            kind = "half_" if set(format.split("/")) <= set(HALF) else ""
            found = kernel_of(dry, op, product(op, format, tokens, 512, 256))
            assert found == f"columns_{kind}convert+columns_{kind}{columns}", (format, tokens)
        assert kernel_of(dry, op, product(op, format, 4, 512, 256)).startswith("gemv")
        assert kernel_of(dry, op, product(op, format, 33, 512, 256)) == "columns_convert+columns_64"


def test_rows_that_are_too_long_for_shared_memory_have_another_kernel(dry: Device) -> None:
    for k, kind in ((1 << 14, "half_"), (1 << 15, "")):
        found = kernel_of(dry, "linear_add", product("linear_add", "q4_k", 32, k, 8))
        assert found == f"columns_{kind}convert+columns_{kind}32"


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("format", [*HALF, "q4_k/q6_k"])
def test_products_equal_their_definition(cuda: Device, format: str, op: str) -> None:
    if op == "linear_add" and "/" in format:
        pytest.skip("it has one weight")
    for tokens in (5, 8, 9, 16, 17, 24, 25, 32):
        for k, n in ((256, 48), (768, 130), (4096, 272), (14336, 64)):
            one = replace(product(op, format, tokens, k, n), bound=BOUND)
            check(one, run(cuda, op, one, packed=weights_of(one)), define(op, one))


@pytest.mark.gpu
@pytest.mark.parametrize("format", HALF)
def test_a_tokens_products_do_not_depend_on_its_neighbours(cuda: Device, format: str) -> None:
    """Rows of extremes beside usual ones: each token has its own scale, and the same bits in any row."""
    one = product("linear", format, 16, 2048, 300, wild=True)
    found = run(cuda, "linear", one, packed=weights_of(one))
    assert np.isfinite(found).all()
    x = one.inputs[0][0]
    turned = replace(one, inputs=((np.roll(x, 3, axis=0).copy(), "f32"), *one.inputs[1:]))
    again = run(cuda, "linear", turned, packed=weights_of(one))
    assert np.roll(found, 3, axis=0).tobytes() == again.tobytes()
