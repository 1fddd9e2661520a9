"""Weights in the packed layout of the portable kernels (`cext/kernels/packed_layout.h`): rows and products
against their definitions, and steps with a norm against their parts, on the emulated GPU and on those whose
driver a test's own or a CPU replaces.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import fused_cases
import numpy as np
import pytest
from accuracy import nmse
from devices import opened
from kernel_cases import check, row
from one_step import (
    Case,
    define,
    extremes,
    f32,
    generator,
    i32,
    pack_inputs,
    plan_of,
    random_blocks,
    refused,
    run,
)

from satchel.errors import DeviceError
from satchel.quant import FORMATS
from satchel.runtime.device.device import DETERMINISTIC_BACKENDS, Device
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.graph import Array

PACKED = ("q4_k", "q5_k", "q6_k", "q8_0", "q4_0", "q5_0", "iq4_nl", "iq4_xs", "mxfp4", "i8_g128")
PRODUCTS = ("linear", "linear_add", "linear_swiglu")
GATES = ("", "_swiglu", "_geglu")
# NMSE of products whose activations have 16 bits, and of those with a gate, whose slope multiplies errors
BOUND, GATED = 1e-8, 1e-7
TILE, CHUNK = 32, 256  # rows and columns


@pytest.fixture(scope="module", params=["emulated", "hip", "sycl"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with opened(request.param) as found:
        yield found


def weights(rng: np.random.Generator, formats: tuple[str, ...], n: int, k: int) -> list[tuple[Array, str]]:
    return [(fused_cases.tame(random_blocks(rng, f, n, k)), f) for f in formats]


def product(op: str, formats: tuple[str, ...], t: int, k: int, n: int) -> Case:
    rng = generator(f"{op}{formats}{t}{k}{n}")
    formats = formats[:1] if op == "linear_add" else formats
    width = n if op != "linear" else n * len(formats)
    residual = [f32(rng, t, width)] if op == "linear_add" else []
    inputs = (f32(rng, t, k), *weights(rng, formats, n, k), *residual)
    return Case(
        f"{op}-{'+'.join(formats)}-{t}x{k}x{n}", inputs, (t, width), bound=GATED if "glu" in op else BOUND
    )


def own(one: Case) -> tuple[int, ...]:
    """The inputs that are packed."""
    return tuple(i for i, (_, format) in enumerate(one.inputs) if format in PACKED)


def width_of(format: str) -> int:
    """Columns that end within a chunk, where the blocks are small enough."""
    return CHUNK + FORMATS[format].block


def test_a_packed_weight_is_no_larger_than_its_whole_tiles(device: Device) -> None:
    kept = {f for f in FORMATS if device.packed(FORMATS[f].id, 1, 1, CHUNK)}
    assert kept == set(PACKED)
    for f, (n, k) in itertools.product(PACKED, ((1, CHUNK), (TILE, CHUNK), (33, 3 * CHUNK))):
        rows, columns = -(-n // TILE) * TILE, -(-k // CHUNK) * CHUNK
        blocks = rows * columns // FORMATS[f].block
        assert device.packed(FORMATS[f].id, 1, n, k) == blocks * FORMATS[f].dtype.itemsize
        assert not device.packed(FORMATS[f].id, 2, n, k)


@pytest.mark.parametrize("format", PACKED)
def test_packed_rows_equal_their_definition(device: Device, format: str) -> None:
    rng, k = generator(format), 2 * width_of(format)
    w = (random_blocks(rng, format, 70, k), format)
    one = Case(format, (w, i32(0, 69, 31, 32, 63, 64, 5)), (7, k), bound=0)
    check(one, run(device, "get_rows", one, packed=(0,)), define("get_rows", one))
    part = Case(format, (w, i32(40, 3, 109, 110, 71)), (5, k), args={"first": 40}, bound=0)
    check(part, run(device, "get_rows_part", part, packed=(0,)), define("get_rows_part", part))


@pytest.mark.parametrize("id", [-1, 70])
def test_a_packed_row_out_of_range_names_the_step(device: Device, id: int) -> None:
    one = Case("", ((random_blocks(generator("out"), "q4_0", 70, 64), "q4_0"), i32(3, id)), (2, 64))
    with pytest.raises(DeviceError, match=r"step 0 \(get_rows\): .* out of range"):
        run(device, "get_rows", one, packed=(0,))


@pytest.mark.parametrize("op", PRODUCTS)
@pytest.mark.parametrize("format", PACKED)
def test_packed_products_equal_their_definition(device: Device, format: str, op: str) -> None:
    """Tiles and chunks that are whole and that are not; more chunks than a group has teams."""
    shapes = ((1, CHUNK, TILE), (4, width_of(format), TILE + 1), (3, 3 * CHUNK, 5), (6, 9 * CHUNK, 2 * TILE))
    for t, k, n in shapes:
        if k % FORMATS[format].block == 0:
            one = product(op, (format, format), t, k, n)
            check(one, run(device, op, one, packed=own(one)), define(op, one))


def test_packed_products_of_several_formats_equal_their_definition(device: Device) -> None:
    for op, formats in (
        ("linear", ("q4_k", "q6_k", "q8_0")),
        ("linear", PACKED),
        ("linear_swiglu", ("q5_0", "q5_k")),
    ):
        one = product(op, formats, 4, CHUNK, 40)
        check(one, run(device, op, one, packed=own(one)), define(op, one))


def test_packed_and_other_weights_are_not_mixed(device: Device) -> None:
    one = product("linear", ("q4_k", "q8_0"), 1, CHUNK, 40)
    assert refused(device, "linear", one, packed=(1,)) and not refused(device, "linear", one, packed=(1, 2))


def step(op: str, formats: tuple[str, ...], t: int, k: int, n: int) -> Case:
    """A call of a step with a norm; the second token and those after it have extreme numbers."""
    rng = generator(f"{op}{formats}{t}{k}{n}")
    post, gate = op.startswith("post"), not op.endswith("linear")
    one = (fused_cases.posted if post else fused_cases.normed)(rng, formats, t, k, n)
    width = (n if gate else n * len(formats)) + (k if post else 0)
    args: dict[str, Any] = {"eps": 1e-5, **({"style": t % 2} if op.endswith("geglu") else {})}
    return replace(one, name=f"{op}-{one.name}", shape=(t, width), args=args, bound=GATED if gate else BOUND)


def parts(device: Device, op: str, one: Case) -> Array:
    """The step's parts on the same device."""
    x, *rest = one.inputs
    eps = {"eps": one.args["eps"]}
    h = x
    if op.startswith("post"):
        *rest, post, r = rest
        h = run(device, "rms_norm_add", Case("h", (x, post, r), x[0].shape, args=eps)), "f32"
    *both, w = rest
    y = run(device, "rms_norm", Case("norm", (h, w), x[0].shape, args=eps)), "f32"
    n = len(both[0][0])
    out = [
        run(device, "linear", Case("product", (y, one_of), (len(x[0]), n)), packed=(1,)) for one_of in both
    ]
    if (gate := op.rpartition("_")[2]) != "linear":
        args = {"style": one.args["style"]} if gate == "geglu" else {}
        halves = tuple((half, "f32") for half in out)
        out = [run(device, gate, Case(gate, halves, out[0].shape, args=args))]
    return np.concatenate([*out, *([h[0]] if op.startswith("post") else [])], axis=-1)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("norm", ["norm", "post_norm"])
def test_steps_with_a_norm_equal_their_definition_and_their_parts(
    device: Device, norm: str, gate: str
) -> None:
    op = f"{norm}_linear{gate}"
    for i, format in enumerate(PACKED):
        one = step(op, (format, PACKED[(i + 1) % len(PACKED)]), i % 4 + 1, (1 + i % 2) * CHUNK, 33)
        found = run(device, op, one, packed=(1, 2))
        check(one, found, define(op, one))
        check(one, found, parts(device, op, one))
    one = step(op, ("q4_k", "q4_k"), 4, 9 * CHUNK, 2 * TILE)
    check(one, run(device, op, one, packed=(1, 2)), define(op, one))
    assert refused(device, op, step(op, ("q4_k", "q4_k"), 5, CHUNK, TILE), packed=(1, 2))


@pytest.mark.parametrize("format", PACKED)
def test_extreme_activations_keep_each_tokens_digits(device: Device, format: str) -> None:
    """Zeros, 1e-30, 1e30, outliers and ties, each token by itself; what is below 1e-33 counts as zero."""
    rng = generator(f"extreme {format}")
    x = extremes(rng, 7, 2 * CHUNK)
    x[4, 7], x[4, 300] = 1e4, -1e5
    one = Case(format, ((x, "f32"), *weights(rng, (format,), 37, 2 * CHUNK)), (7, 37), bound=BOUND)
    found, want = run(device, "linear", one, packed=(1,)), define("linear", one)
    assert not found[:2].any() and np.isfinite(found).all()
    for t in range(2, 7):
        assert nmse(found[t], want[t]) <= BOUND, t
    x[2, 7], x[3, 9] = np.nan, -np.inf
    found = run(device, "linear", replace(one, inputs=((x, "f32"), one.inputs[1])), packed=(1,))
    assert not np.isfinite(found[2:4]).any() and np.isfinite(np.delete(found, [2, 3], 0)).all()


def test_extreme_scales_of_weights_are_met(device: Device) -> None:
    """The largest and the least scales that the blocks can state."""
    rng = generator("scales")
    for format, d in itertools.product(("q4_k", "q6_k", "q8_0", "q4_0"), (6e-8, 6e4, 0.0)):
        w = random_blocks(rng, format, 33, CHUNK)
        w["d"] = np.float16(d)
        if "dmin" in (w.dtype.names or ()):
            w["dmin"] = np.float16(d)
        one = Case(f"{format} {d}", (f32(rng, 2, CHUNK), (w, format)), (2, 33), bound=BOUND)
        check(one, run(device, "linear", one, packed=(1,)), define("linear", one))


@pytest.mark.parametrize("op", PRODUCTS)
def test_a_token_of_a_packed_product_does_not_depend_on_its_batch(device: Device, op: str) -> None:
    one = product(op, ("q4_k", "q6_k"), 7, 3 * CHUNK, 40)
    whole = run(device, op, one, packed=own(one))
    for t in (0, 3, 6):
        alone = row(one, t, (0, 2) if op == "linear_add" else (0,))
        assert run(device, op, alone, packed=own(one))[0].tobytes() == whole[t].tobytes(), t


def test_the_order_of_threads_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    one = step("post_norm_linear_swiglu", ("q5_k", "q8_0"), 3, 5 * CHUNK, 40)
    for seed in ("5", "91"):
        monkeypatch.setenv("SATCHEL_EMULATED_SEED", seed)
        with opened("emulated") as device:
            found.append(run(device, "post_norm_linear_swiglu", one, packed=(1, 2)).tobytes())
    assert found[0] == found[1]


def test_deterministic_devices_take_no_step_with_a_norm(device: Device) -> None:
    """A plan for more tokens has the parts, whose bits may differ."""
    if device.name not in DETERMINISTIC_BACKENDS:
        pytest.skip(f"{device.name} has no deterministic plans")
    with find_backend(device.name).open(deterministic=True) as deterministic:
        one = product("linear", ("q4_k",), 3, CHUNK, 40)
        check(one, run(deterministic, "linear", one, packed=(1,)), define("linear", one))
        assert refused(
            deterministic, "norm_linear", step("norm_linear", ("q4_k",), 1, CHUNK, 40), packed=(1,)
        )


def test_the_device_chooses_them_for_packed_weights(device: Device) -> None:
    for op, t in itertools.product(PRODUCTS, (1, 4)):
        one = product(op, ("q4_k", "q4_k"), t, CHUNK, 40)
        packed = pack_inputs(device, one, plan_of(op, one, 0)[0], own(one))
        assert device.kernels(packed, 0)[0] == "packed_linear"
