"""Products of tokens with their experts: a result does not depend on the batch, the fused op equals its
parts, and an invalid expert id ends the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import expert_cases  # noqa: F401  # its calls
import numpy as np
import pytest
from one_step import SETS, Case, cases_of, open_set, run

from satchel.errors import DeviceError
from satchel.runtime.device.device import Device


@pytest.fixture(params=SETS)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    yield from open_set(request.param, monkeypatch, 2)


@pytest.mark.parametrize("op", ["expert_linear", "expert_swiglu"])
def test_a_token_and_an_expert_do_not_depend_on_their_batch(device: Device, op: str) -> None:
    """One slot, as the only expert of the only token, gives the bits that it has in the whole batch."""
    for one in cases_of(op):
        (x, act), *weights, (ids, _) = one.inputs
        whole = run(device, op, one)
        for t, j in {(0, 0), (len(ids) // 2, 1), (len(ids) - 1, 2)}:
            row = x[t : t + 1, j : j + 1] if x.ndim == 3 else x[t : t + 1]
            inputs = ((row, act), *weights, (ids[t : t + 1, j : j + 1], "i32"))
            alone = run(device, op, replace(one, inputs=inputs, shape=(1, 1, one.shape[-1])))
            assert alone.tobytes() == whole[t, j].tobytes(), (one.name, t, j)


def test_the_fused_gate_equals_its_parts(device: Device) -> None:
    for one in cases_of("expert_swiglu"):
        x, gate, up, ids = one.inputs
        parts = [run(device, "expert_linear", replace(one, inputs=(x, w, ids))) for w in (gate, up)]
        rows = [(p.reshape(len(p), -1), "f32") for p in parts]
        wanted = run(device, "swiglu", Case("", tuple(rows), rows[0][0].shape))
        np.testing.assert_array_equal(run(device, "expert_swiglu", one).reshape(wanted.shape), wanted)


def test_a_router_row_with_a_nan_gives_no_weight(device: Device) -> None:
    logits = np.zeros((3, 40), np.float32)
    logits[1, 33], logits[2, 7] = np.nan, np.inf
    ids = np.tile(np.arange(4, dtype=np.int32), (3, 1))
    for norm in (0, 1):
        one = Case("nan", ((logits, "f32"), (ids, "i32")), (3, 4), args={"norm": norm})
        got = run(device, "expert_weights", one)
        assert np.isfinite(got[0]).all() and np.isnan(got[1:]).all()


@pytest.mark.parametrize("op", ["expert_weights", "expert_linear", "expert_swiglu"])
@pytest.mark.parametrize("bad", [-1, 2**31 - 1, None])
def test_an_id_that_names_no_expert_names_the_step(device: Device, op: str, bad: int | None) -> None:
    if bad == -1 and op != "expert_weights":
        pytest.skip("a number below 0 is another device's expert")
    one = cases_of(op)[0]
    ids = one.inputs[-1][0].copy()
    experts = one.inputs[0][0].shape[1] if op == "expert_weights" else one.inputs[1][0].shape[0]
    ids[-1, -1] = experts if bad is None else bad
    with pytest.raises(DeviceError, match=rf"step 0 \({op}\): .* out of range"):
        run(device, op, replace(one, inputs=(*one.inputs[:-1], (ids, "i32"))))


@pytest.mark.parametrize(
    ("op", "change", "said"),
    [
        ("expert_linear", lambda x, w, i: (x, w, (i[0][:, :2], "i32")), "ids must be i32"),
        ("expert_linear", lambda x, w, i: ((x[0][:, :32], "f32"), w, i), "with x's K"),
        ("expert_linear", lambda x, w, i: (x, (w[0][0], "f32"), i), r"\(E, N, K\)"),
        ("expert_linear", lambda x, w, i: ((x[0].astype(np.float16), "f16"), w, i), "activation format"),
        ("expert_swiglu", lambda x, g, u, i: (x, g, (u[0][1:], "f32"), i), r"\(E, N, K\)"),
        ("expert_swiglu", lambda x, g, u, i: (x, g, i), "it takes x"),
    ],
)  # fmt: skip
def test_operands_that_do_not_fit_are_refused(device: Device, op: str, change, said: str) -> None:  # type: ignore[no-untyped-def]
    one = cases_of(op)[0]
    with pytest.raises(DeviceError, match=said):
        run(device, op, replace(one, inputs=change(*one.inputs)))
