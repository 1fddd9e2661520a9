"""Every op on every kernel set that this machine supports, against its numpy definition: random and extreme
inputs, strided views. The cases are in tests/support/.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kernel_cases import CPU_OPS, FUSED_STEPS, WRONG, check, row, wrong
from one_step import SETS, Case, cases_of, open_set, run, wanted

from satchel.errors import DeviceError
from satchel.runtime.device.device import Device
from satchel.runtime.device.libraries import find_backend


@pytest.fixture(params=SETS)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    yield from open_set(request.param, monkeypatch, 2)


@pytest.mark.parametrize("op", CPU_OPS)
def test_op_equals_its_definition(device: Device, op: str) -> None:
    for one, want in zip(cases_of(op), wanted(op), strict=True):
        check(one, run(device, op, one), want)


@pytest.mark.parametrize("op", CPU_OPS)
def test_op_on_the_remote_device(op: str) -> None:
    with find_backend("remote").open(threads=2) as remote:
        for one, want in list(zip(cases_of(op), wanted(op), strict=True))[:4]:
            check(one, run(remote, op, one, pad=0), want)


@pytest.mark.parametrize("op", sorted(FUSED_STEPS))
def test_fused_ops_of_gpus_are_refused(device: Device, op: str) -> None:
    with pytest.raises(DeviceError, match=rf"step 0 \({op}\): this backend has no kernel for the op"):
        run(device, op, cases_of(op)[0])


@pytest.mark.parametrize(
    ("op", "split"), [("linear", (0,)), ("attention", (0, 3, 4)), ("linear_add", (0, 2))]
)
def test_a_token_does_not_depend_on_its_batch(device: Device, op: str, split: tuple[int, ...]) -> None:
    for one in cases_of(op):
        if not one.args.get("causal", 1):
            continue  # what a token sees ahead is the rest of its step
        whole = run(device, op, one)
        for t in {0, one.shape[0] // 2, one.shape[0] - 1}:
            alone = run(device, op, row(one, t, split))
            assert alone[0].tobytes() == whole[t].tobytes(), (one.name, t)


@pytest.mark.parametrize(("op", "others"), [("linear", 0), ("linear_add", 1)])
def test_packed_weights_give_the_same_bits(device: Device, op: str, others: int) -> None:
    for one in cases_of(op):
        weights = range(1, len(one.inputs) - others)
        assert run(device, op, one, packed=weights).tobytes() == run(device, op, one).tobytes(), one.name


def test_threads_do_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    with find_backend("cpu").open(threads=1) as single, find_backend("cpu").open(threads=3) as three:
        for op in CPU_OPS:
            for one in cases_of(op):
                assert run(single, op, one).tobytes() == run(three, op, one).tobytes(), (op, one.name)


@pytest.mark.parametrize("op", ["norm_quantize", "swiglu_quantize"])
def test_fused_quantizers_equal_their_parts(device: Device, op: str) -> None:
    plain = {"norm_quantize": "rms_norm", "swiglu_quantize": "swiglu"}[op]
    for one in cases_of(op):
        args = {k: v for k, v in one.args.items() if k != "format"}
        x = run(device, plain, Case("", one.inputs, one.shape, args=args))
        second = Case("", ((x, "f32"),), one.shape, one.format, {"format": one.format})
        assert run(device, op, one).tobytes() == run(device, "quantize", second).tobytes()


@pytest.mark.parametrize(
    ("op", "index", "values"),
    WRONG,
)
def test_an_index_out_of_range_names_the_step(device: Device, op: str, index: int, values: list[int]) -> None:
    with pytest.raises(DeviceError, match=rf"step 0 \({op}\): .* out of range"):
        run(device, op, wrong(op, index, values))
