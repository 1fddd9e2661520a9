"""Fused ops on every kernel set give the bits of their parts, for any number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import fused_cases
import kernel_cases  # noqa: F401  # the cases of all ops
import numpy as np
import pytest
from one_step import CASES, SETS, Case, cases_of, generator, open_set, run

from satchel.errors import DeviceError
from satchel.quant import FORMATS
from satchel.runtime.device.device import Device
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.graph import Array
from satchel.runtime.ops import OPS


@pytest.fixture(params=SETS)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    yield from open_set(request.param, monkeypatch, 2)


def floats(device: Device, op: str, *inputs: tuple[Array, str], shape: tuple[int, ...]) -> tuple[Array, str]:
    return run(device, op, Case("", inputs, shape)), "f32"


@pytest.mark.parametrize("op", ["linear_swiglu", "linear_swiglu_quantize"])
def test_a_gated_product_equals_its_parts(device: Device, op: str) -> None:
    for one in cases_of(op):
        x, *weights = one.inputs
        gate, up = (floats(device, "linear", x, w, shape=one.shape) for w in weights)
        wanted = floats(device, "swiglu", gate, up, shape=one.shape)
        if op == "linear_swiglu_quantize":
            wanted = run(device, "quantize", replace(one, inputs=(wanted,))), one.format
        assert run(device, op, one).tobytes() == wanted[0].tobytes(), one.name


def test_a_turned_write_equals_its_parts(device: Device) -> None:
    for one in cases_of("rope_kv_write"):
        cache, x, cos_sin, *place = one.inputs
        rotated = run(device, "rope", Case("", (x, cos_sin), x[0].shape, args=one.args)), "f32"
        wanted = run(device, "kv_write", replace(one, inputs=(cache, rotated, *place), args={}))
        assert run(device, "rope_kv_write", one).tobytes() == wanted.tobytes(), one.name


@pytest.mark.parametrize("op", ["linear_swiglu", "linear_swiglu_quantize"])
def test_a_token_does_not_depend_on_its_batch_in_a_gated_product(device: Device, op: str) -> None:
    for one in cases_of(op):
        (x, act), *weights = one.inputs
        whole = run(device, op, one)
        for t in {0, len(x) // 2, len(x) - 1}:
            inputs = ((x[t : t + 1], act), *weights)
            alone = run(device, op, replace(one, inputs=inputs, shape=(1, one.shape[1])))
            assert alone[0].tobytes() == whole[t].tobytes(), (one.name, t)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads_do_not_change_a_quantized_gated_product(threads: int) -> None:
    """Many grains, whose chunks may end on any thread."""
    rng = generator("many grains")
    one = fused_cases.gated(rng, ("q4_k", "q6_k"), 9, 512, 16 * 256, "a8_256")
    with find_backend("cpu").open(threads=2) as usual, find_backend("cpu").open(threads=threads) as other:
        wanted = run(usual, "linear_swiglu_quantize", one)
        for _ in range(5):
            assert run(other, "linear_swiglu_quantize", one).tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    ("op", "change", "said"),
    [
        ("linear_swiglu", lambda x, g, u: (x, g), "a gate and an up"),
        ("linear_swiglu", lambda x, g, u: (x, g, (u[0][1:], u[1])), r"gate and up must be \(N, K\)"),
        ("linear_swiglu", lambda x, g, u: ((x[0][:, :32], x[1]), g, u), "with x's K"),
        ("linear_swiglu_quantize", lambda x, g, u: (x, g, u, u), "a gate and an up"),
        ("rope", lambda x, t: (x, (t[0][:, :3], "f32")), "n_rot must be even"),
        ("rope", lambda x, t: (x, (t[0][1:], "f32")), "cos_sin f32"),
        ("rope_table", lambda p, f: (p, (f[0][1:], "f32")), r"\(T, 2 N\)"),
        ("rope_kv_write", lambda c, x, t, *p: (c, x, (t[0][:, :1], "f32"), *p), "n_rot must be even"),
        ("rope_kv_write", lambda c, x, t, *p: (c, x, t, *p[1:]), "it takes cache, x, cos_sin"),
    ],
)
def test_operands_that_do_not_fit_are_refused(device: Device, op: str, change, said: str) -> None:
    one = cases_of(op)[0]
    with pytest.raises(DeviceError, match=said):
        run(device, op, replace(one, inputs=change(*one.inputs)))


@pytest.mark.parametrize(("index", "values"), [(3, [0, 2, 1, 0]), (4, [0, 15, 16, 4000]), (4, [-1, 0, 0, 0])])
def test_a_turned_write_outside_of_the_cache_names_the_step(
    device: Device, index: int, values: list[int]
) -> None:
    one = cases_of("rope_kv_write")[0]
    inputs = list(one.inputs)
    inputs[index] = np.array(values, np.int32), "i32"
    with pytest.raises(DeviceError, match=r"step 0 \(rope_kv_write\): .* out of range"):
        run(device, "rope_kv_write", replace(one, inputs=tuple(inputs)))


@pytest.mark.parametrize("op", [name for name, op in OPS.items() if op.parts and name in CASES])
def test_parts_name_ops_that_are_no_fused_ones(op: str) -> None:
    """The parts of a fused op are not fused ops, so a device that lacks it needs no other fused op."""
    from satchel.runtime.graph import Graph, Type, toposort

    g = Graph()
    one = cases_of(op)[0]
    src = [
        g.node("input", (), Type((*a.shape[:-1], a.shape[-1] * FORMATS[f].block), f), str(i))
        for i, (a, f) in enumerate(one.inputs)
    ]
    made = OPS[op].parts(*src, **{**OPS[op].defaults, **one.args})
    assert made.type == OPS[op](*src, **one.args).type
    assert not [n.op for n in toposort([made]) if n.op in OPS and OPS[n.op].parts]
