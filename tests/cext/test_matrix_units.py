"""Products on matrix units: the kernel of `cext/kernels/matrix.k.h` on models of AMD's instructions, whose
layouts `cext/hip/fragments.h` states, and of Metal's simdgroup_matrix, and through SYCL's joint_matrix where
a device has it.

Each product is compared with the definition on operands rounded as the units need them (bfloat16; Metal:
unrounded), which differs only by the order of summation, and with the definition itself.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from accuracy import nmse
from devices import opened
from one_step import (
    MORE_WEIGHTS,
    WEIGHTS,
    Case,
    define,
    encode,
    extremes,
    f32,
    generator,
    kernels_of,
    random_blocks,
    run,
)

from satchel.errors import DeviceError
from satchel.quant import FORMATS
from satchel.runtime.device.device import DETERMINISTIC_BACKENDS, Device
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.graph import Array

EMULATED = tuple(f"matrix_linear_{unit}" for unit in ("mfma", "wmma11", "wmma12"))
UNITS = [("emulated", name) for name in EMULATED]
UNITS += [(gpu, "matrix_linear") for gpu in ("hip", "sycl", "metal")]
FLOAT32 = {"metal"}  # units that do not round their operands
OPS = ("linear", "linear_add", "linear_swiglu")
SUMS = 1e-11  # NMSE of sums in float32
ROUNDED = dict(
    zip(OPS, (3e-5, 3e-5, 1e-3), strict=True)
)  # of operands with 8 significant bits; a gate doubles them and more
TOKENS, ROWS, DEPTH = 64, 128, 64  # sizes of a group's tile
LEAST = 32  # columns from which the device chooses them


@pytest.fixture(scope="module", params=UNITS, ids=lambda unit: "-".join(unit))
def unit(request: pytest.FixtureRequest) -> Iterator[tuple[Device, str]]:
    """A device, and the kernel of its matrix units."""
    name, kernel = request.param
    with opened(name) as device:
        if kernel not in kernels_of(device, "linear", product("linear", "f32", 1, 32, (1,)), pad=0):
            pytest.skip(f"{name}: the device has no matrix units")
        yield device, kernel


def weights(
    rng: np.random.Generator, formats: tuple[str, ...], rows: tuple[int, ...], k: int
) -> Iterator[tuple[Array, str]]:
    for format, n in zip(formats, rows, strict=True):
        yield random_blocks(rng, format, n, k), format


def product(op: str, format: str, t: int, k: int, rows: tuple[int, ...], *more: str) -> Case:
    """A call of the op. more: the formats of the second weight and of those after it."""
    rng = generator(f"{op}{format}{t}{k}{rows}")
    rows = (rows[0], rows[0]) if op == "linear_swiglu" else rows[:1] if op == "linear_add" else rows
    formats = (format, *more, *(format,) * len(rows))[: len(rows)]
    width = rows[0] if op == "linear_swiglu" else sum(rows)
    residual = (f32(rng, t, width),) if op == "linear_add" else ()
    inputs = (f32(rng, t, k), *weights(rng, formats, rows, k), *residual)
    return Case(f"{op} {formats} {t}x{k}x{rows}", inputs, (t, width))


def depth(format: str) -> int:
    """A row that ends within a group's step, for formats whose blocks are small enough."""
    block = FORMATS[format].block
    return block if 96 % block else 96


def halved(x: Array) -> Array:
    return FORMATS["bf16"].decode(encode("bf16", x))


def tiny(x: Array) -> Array:
    """The values below 2^-126, which some units (AMX) flush to zero."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.abs(x), 0).astype(np.float64)


def rounded(op: str, one: Case) -> Case:
    """The call with activations and weights rounded to bfloat16; a residual stays as it is."""
    n = 2 if op == "linear_add" else len(one.inputs)
    decoded = [(halved(FORMATS[format].decode(array)), "f32") for array, format in one.inputs[:n]]
    return replace(one, inputs=(*decoded, *one.inputs[n:]))


def flushed(one: Case) -> Case:
    """The call without values that Apple's GPUs flush to zero."""
    least = np.float32(2.0**-126)
    return replace(one, inputs=tuple((np.where(abs(a) < least, 0, a), f) for a, f in one.inputs))


@functools.cache
def calls() -> list[tuple[str, Case, Array, Array]]:
    """(op, call, definition on rounded operands, definition) for all formats, with shapes at a tile's
    edges.
    """
    made = [("linear", product("linear", f, 5, depth(f), (19,))) for f in (*WEIGHTS, *MORE_WEIGHTS)]
    made += [(op, product(op, f, 3, 256, (40,))) for op in OPS[1:] for f in ("f16", "q8_0", "q6_k")]
    for t, k, rows in (
        (TOKENS, DEPTH, (ROWS,)),
        (TOKENS + 1, 2 * DEPTH, (ROWS + 1,)),
        (TOKENS // 2 + 1, 3 * 32, (ROWS // 2 + 1, 1, 30)),
        (1, 32, (1,)),
        (2 * TOKENS, 32, (7,)),
    ):
        made += [(op, product(op, "q4_0", t, k, rows)) for op in OPS]
    made += [("linear", product("linear", f, 2, 78, (5,))) for f in ("f32", "f16", "bf16")]
    made += [("linear", product("linear", "q4_k", 5, 512, (32, 48, 3), "q6_k", "q5_k"))]
    return [(op, one, define(op, rounded(op, one)), define(op, one)) for op, one in made]


def test_products_are_their_definition(unit: tuple[Device, str]) -> None:
    device, kernel = unit
    for op, one, halves, exact in calls():
        got = run(device, op, one, kernel=kernel)
        assert nmse(got, exact if device.name in FLOAT32 else halves) <= SUMS, one.name
        assert nmse(got, exact) <= ROUNDED[op], one.name


@pytest.mark.parametrize("op", OPS)
def test_packed_weights_give_the_same_bits(unit: tuple[Device, str], op: str) -> None:
    """They are unpacked to the same numbers."""
    device, kernel = unit
    formats = [f for f in FORMATS if device.packed(FORMATS[f].id, 1, 1, 256)]
    if not formats:
        pytest.skip(f"{device.name} packs no weights")
    for format, other in zip(formats, [*formats[1:], "q5_1"], strict=True):
        rows = (40, 33) if op == "linear" else (40,)
        one = product(op, format, 5, 256 + FORMATS[format].block, rows, format)
        own = (1,) if op == "linear_add" else (1, 2)
        found = run(device, op, one, packed=own, kernel=kernel)
        assert found.tobytes() == run(device, op, one, kernel=kernel).tobytes(), one.name
        mixed = product(op, format, 5, 256, rows, other)
        found = run(device, op, mixed, packed=(1,), kernel=kernel)
        assert found.tobytes() == run(device, op, mixed, kernel=kernel).tobytes(), mixed.name


def test_huge_tiny_and_missing_numbers(unit: tuple[Device, str]) -> None:
    device, kernel = unit
    rng = generator("extremes")
    x = extremes(rng, 9, 256)
    x[3] = rng.standard_normal(256)  # in place of 1e30, for w has such too
    w = rng.standard_normal((20, 256)).astype(np.float32)
    w[3] *= 1e30
    w[5] *= 1e-35
    one = Case("extremes", ((x, "f32"), (w, "f32")), (9, 20))
    met = flushed(one) if device.name in FLOAT32 else rounded("linear", one)
    got, want = run(device, "linear", one, kernel=kernel), define("linear", met)
    a, b = (np.abs(array).astype(np.float64) for array, _ in met.inputs)
    lost = tiny(a) @ b.T + a @ tiny(b).T if device.name == "sycl" else np.zeros(got.shape)
    bound = 1e-5 * a @ b.T + 1e-37 + lost
    assert (np.abs(got.astype(np.float64) - want) <= bound).all()
    x[2, 7], x[3, 9], w[8, 1] = np.nan, np.inf, np.nan
    got = run(device, "linear", Case("nan", ((x, "f32"), (w, "f32")), (9, 20)), kernel=kernel)
    assert np.isnan(got[2]).all() and not np.isfinite(got[3]).any() and np.isnan(got[:, 8]).all()
    rest = np.delete(np.delete(got, [2, 3], 0), 8, 1)
    assert np.isfinite(rest).all()


@pytest.mark.parametrize("kernel", EMULATED)
def test_the_order_of_threads_changes_nothing(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    one = product("linear_swiglu", "q4_k", TOKENS + 3, 512, (70,))
    for seed in ("3", "78"):
        monkeypatch.setenv("SATCHEL_EMULATED_SEED", seed)
        with opened("emulated") as device:
            found.append(run(device, "linear_swiglu", one, kernel=kernel).tobytes())
    assert found[0] == found[1]


def usual(device: Device, op: str, tokens: int) -> str:
    """The kernel that the device chooses."""
    return kernels_of(device, op, product(op, "q4_k", tokens, 256, (32,)), pad=0)[0]


def test_many_columns_go_to_them_unasked(unit: tuple[Device, str]) -> None:
    device, kernel = unit
    many = "linear" if device.name == "emulated" else kernel  # which has several, each by its name
    for op in OPS:
        assert (usual(device, op, LEAST), usual(device, op, LEAST - 1)) == (many, "linear")
    if device.name not in DETERMINISTIC_BACKENDS:
        return
    with find_backend(device.name).open(deterministic=True) as deterministic:
        assert usual(deterministic, "linear", LEAST) == "linear"


def test_a_kind_that_a_device_lacks_is_refused() -> None:
    with opened("emulated") as device:
        assert usual(device, "linear", LEAST) == "linear"
        with pytest.raises(DeviceError, match="no such kernel as is asked for"):
            run(device, "linear", product("linear", "q4_k", 5, 256, (32,)), kernel="matrix_linear")
