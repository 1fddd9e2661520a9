"""Fused ops for few tokens against their parts on the same GPU, with random and extreme inputs;
`pytest -m gpu`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import fused_cases
import pytest
from kernel_cases import check
from one_step import Case, define, generator, plan_of, run

from satchel.quant import FORMATS
from satchel.runtime.device.device import Device, find_backend, libraries
from satchel.runtime.graph import Array

TOKENS = (1, 2, 4, 8)
ROUNDED = 1e-3  # nmse: tensor cores round activations, before the norm's factor or after it


@pytest.fixture(scope="module")
def cuda() -> Iterator[Device]:
    if not any(f.name == "cuda" and not f.reason for f in libraries()):
        pytest.skip("cuda: it cannot be used here")
    with find_backend("cuda").open() as opened:
        yield opened


def normed_parts(device: Device, op: str, one: Case, packed: tuple[int, ...]) -> Array:
    """rms_norm, then the product."""
    x, *weights, w = one.inputs
    norm = run(device, "rms_norm", Case("", (x, w), x[0].shape, args=one.args)), "f32"
    return run(device, op, replace(one, inputs=(norm, *weights), args={}), packed=packed)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [*TOKENS, 3, 5, 16, 33, 128])
@pytest.mark.parametrize("op", ["norm_linear", "norm_linear_swiglu"])
def test_a_product_with_its_norm_equals_its_parts(cuda: Device, op: str, tokens: int) -> None:
    rng = generator(f"{op} {tokens}")
    packed = [f for f in FORMATS if cuda.packed(FORMATS[f].id, 1, 16, 256)]
    mixed = [("q4_k", "q6_k"), ("q4_0", "q8_0")]
    tried = 0
    for formats in [("f16", "f16"), ("bf16", "bf16"), *((f, f) for f in packed), *mixed]:
        for k, n in ((256, 48), (1024, 130), (4096, 64)):
            one = fused_cases.normed(rng, formats, tokens, k, n)
            one = replace(one, bound=ROUNDED, shape=(tokens, n if op == "norm_linear_swiglu" else 2 * n))
            own = (1, 2) if formats[0] in packed else ()
            if not own and cuda.refusal(plan_of(op, one, 64)[0]):
                continue
            found = run(cuda, op, one, packed=own)
            check(one, found, define(op, one))
            check(one, found, normed_parts(cuda, op[len("norm_") :], one, own))
            tried += 1
    assert tried >= 3 * len(packed)
