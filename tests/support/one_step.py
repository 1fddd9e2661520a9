"""Runs one op on one device as a plan of one step; operands and result are numpy arrays. Also makes test
values.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from satchel import cext
from satchel.errors import DeviceError
from satchel.quant import FORMATS
from satchel.runtime.device.device import (
    SAMPLING,
    Buffer,
    Device,
    KernelOverride,
)
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.graph import Array
from satchel.runtime.ops import OPS
from satchel.runtime.plan import PACKED, BufferSpec, Segment

SETS = ("scalar", "avx2", "avxvnni", "avx512", "avx512bf16", "amx", "neon", "dotprod", "i8mm")
WEIGHTS = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k")
# Formats whose products share the code of those above, and so need fewer cases.
MORE_WEIGHTS = (
    *("q2_k", "q3_k", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs"),
    *("tq1_0", "tq2_0", "mxfp4", "nvfp4", "q1_0", "q2_0", "i8_g128", "f8_e4m3", "f8_e5m2", "q8_k", "f64"),
)
ACTIVATIONS = ("a8_32", "a8_256", "bf16x2", "f16", "bf16")
CONST, STATE, STEP, OUT = 1, 2, 4, 5


@dataclass(frozen=True)
class Case:
    """One call of an op."""

    name: str
    inputs: tuple[tuple[Array, str], ...]  # (array in its format, name of the format) of each operand
    shape: tuple[int, ...]  # of the result
    format: str = "f32"  # of the result
    args: dict[str, Any] = field(default_factory=dict)
    bound: float = 1e-11  # the largest NMSE against the definition


CASES: dict[str, Callable[[np.random.Generator], Iterator[Case]]] = {}


def case(op: str) -> Callable[[Callable[[np.random.Generator], Iterator[Case]]], None]:
    def register(make: Callable[[np.random.Generator], Iterator[Case]]) -> None:
        CASES[op] = make

    return register


# --- running one step


def shape_of(array: Array, format: str) -> tuple[int, ...]:
    return (*array.shape[:-1], array.shape[-1] * FORMATS[format].block)


def spread(array: Array, pad: int) -> tuple[bytearray, int]:
    """The array's bytes with `pad` bytes of 0xFF after each index of the first dimension, and the stride."""
    rows = np.ascontiguousarray(array).view(np.uint8).reshape(len(array), -1)
    wide = np.full((len(rows), rows.shape[1] + pad), 0xFF, np.uint8)
    wide[:, : rows.shape[1]] = rows
    return bytearray(wide.tobytes()), wide.shape[1]


def view(buffer: int, format: str, shape: tuple[int, ...], stride: int) -> Array:
    row = np.zeros((), cext.dtype_of("hal_view"))
    row["buffer"], row["format"], row["stride"], row["count"] = buffer, FORMATS[format].id, stride, -1
    row["ndim"], row["shape"] = len(shape), [*shape, 1, 1, 1][:4]
    return row


def plan_of(op: str, case: Case, pad: int) -> tuple[Segment, list[bytearray]]:
    """A plan of one step, each operand in a buffer of its own, and what is to be written to the buffers."""
    alias, changed = OPS[op].alias, OPS[op].alias or OPS[op].update
    data, views, buffers = [bytearray(32)], [], [BufferSpec("step", STEP, 32)]
    for array, format in case.inputs:
        shared = op in ("add", "mul") and array.ndim < len(case.shape)  # a broadcast operand is dense
        raw, stride = spread(array, 0 if array.ndim == 1 or shared else pad)
        views.append(view(len(buffers), format, shape_of(array, format), stride))
        buffers.append(BufferSpec(f"in{len(buffers)}", STATE if changed else CONST, len(raw)))
        data.append(raw)
    if alias:
        views.insert(0, views[0])
    else:
        dtype, block = FORMATS[case.format].dtype, FORMATS[case.format].block
        empty = np.zeros((*case.shape[:-1], case.shape[-1] // block), dtype)
        raw, stride = spread(empty, 0 if len(case.shape) == 1 else pad)
        views.insert(0, view(len(buffers), case.format, case.shape, stride))
        buffers.append(BufferSpec("out", OUT, len(raw)))
        data.append(raw)
    args = {k: v for k, v in {**OPS[op].defaults, **case.args}.items() if k != "format"}
    ops = np.zeros(1, cext.dtype_of("hal_op"))
    ops["name"], ops["arg_size"] = op.encode(), cext.arg_size(op)
    steps = np.array([(0, len(case.inputs), 0, 0)], cext.dtype_of("hal_step"))
    return Segment("", (), (), steps, np.array(views), ops, cext.pack_arg(op, args), tuple(buffers)), data


def matrices(array: Array, format: str) -> tuple[int, int, int]:
    """A weight as a stack of matrices (E, N, K)."""
    stack, rows, columns = (1, *shape_of(array, format))[-3:]
    return stack, rows, columns


def pack_inputs(device: Device, case: Case, segment: Segment, inputs: Sequence[int]) -> Segment:
    """The same step with these weights packed by the device; input i has buffer i + 1."""
    views, buffers = segment.view_table.copy(), list(segment.buffers)
    for i in inputs:
        array, format = case.inputs[i]
        size = device.packed(FORMATS[format].id, *matrices(array, format))
        assert size, (case.name, i)
        views[i + 1]["format"] |= PACKED
        views[i + 1]["stride"] = 0
        buffers[i + 1] = replace(buffers[i + 1], size=size)
    return replace(segment, view_table=views, buffers=tuple(buffers))


def refused(device: Device, op: str, case: Case, pad: int = 64, packed: Sequence[int] = ()) -> bool:
    """Whether the device refuses such a call."""
    return bool(device.refusal(pack_inputs(device, case, plan_of(op, case, pad)[0], packed)))


def kernels_of(
    device: Device, op: str, case: Case, packed: Sequence[int] = (), pad: int = 64
) -> tuple[str, ...]:
    """Names of the device's kernels for such a call, which the tuner measures; the default is first."""
    return device.kernels(pack_inputs(device, case, plan_of(op, case, pad)[0], packed), 0)


def run(
    device: Device, op: str, case: Case, pad: int = 64, packed: Sequence[int] = (), kernel: str = ""
) -> Array:
    """The device's result, computed by the kernel of this name if one is given."""
    return run_all(device, op, case, pad, packed, kernel)[0]


def run_all(
    device: Device, op: str, case: Case, pad: int = 64, packed: Sequence[int] = (), kernel: str = ""
) -> list[Array]:
    """The device's result, then the caches that the op writes beside it."""
    segment, data = plan_of(op, case, pad)
    segment = pack_inputs(device, case, segment, packed)
    buffers = [device.alloc(b.size, b.usage) for b in segment.buffers]
    write_all(buffers, data, case, packed)
    program = device.compile(segment, buffers, [KernelOverride(0, kernel)] if kernel else None)
    block = cext.ffi.new("uint8_t[]", 32)
    program.run(block, 32)
    program.wait()
    written = [case.inputs[0] if OPS[op].alias else (None, case.format)]
    which = [0]
    if OPS[op].update:
        which += [i + 1 for i in range(len(case.inputs))[OPS[op].cache]]
        written += case.inputs[OPS[op].cache]
    found = [
        read_rows(buffers[int(view["buffer"])], int(view["stride"]), case, *one)
        for view, one in zip(segment.view_table[which], written, strict=True)
    ]
    for child in (program, *buffers):
        child.close()
    return found


def write_all(
    buffers: Sequence[Buffer], data: Sequence[bytearray], case: Case, packed: Sequence[int]
) -> None:
    """Writes the buffers of a plan of one step, from the step block's on, with these inputs packed."""
    for i, (buffer, raw) in enumerate(zip(buffers, data, strict=True)):
        if i - 1 in packed:
            array, format = case.inputs[i - 1]
            buffer.pack(
                0, FORMATS[format].id, matrices(array, format), np.ascontiguousarray(array).view(np.uint8)
            )
        else:
            buffer.write(0, raw)


def read_rows(buffer: Buffer, stride: int, case: Case, array: Array | None, format: str) -> Array:
    """A buffer's rows in the shape of this array, or of the case's result."""
    raw = np.zeros(buffer.size, np.uint8)
    buffer.read_into(0, raw)
    shape = case.shape if array is None else shape_of(array, format)
    dtype, block_size = FORMATS[format].dtype, FORMATS[format].block
    full = (*shape[:-1], shape[-1] // block_size)
    width = int(np.prod(full[1:])) * dtype.itemsize
    rows = np.ascontiguousarray(raw.reshape(full[0], stride)[:, :width])
    return rows.view(dtype).reshape(full)


def define(op: str, case: Case) -> Array:
    inputs = [a for a, _ in case.inputs]
    at = {"sample": 4, "sample_masked": 4, "logprobs": 2}.get(op, len(inputs))
    if at < len(inputs):
        inputs[at] = inputs[at].view(SAMPLING)[:, 0]
    return OPS[op].define(*inputs, **{**OPS[op].defaults, **case.args})


def define_all(op: str, case: Case) -> list[Array]:
    """What the definition writes: the result, then the caches beside it."""
    update, inputs = OPS[op].update, [a for a, _ in case.inputs]
    beside = update(*inputs, **{**OPS[op].defaults, **case.args}) if update else ()
    return [define(op, case), *beside]


@functools.cache
def cases_of(op: str) -> list[Case]:
    """The op's calls, created once for all kernel sets."""
    return list(CASES[op](generator(op)))


@functools.cache
def wanted(op: str) -> list[Array]:
    """The definition's result for each call of `cases_of`, computed once for all kernel sets."""
    return [define(op, one) for one in cases_of(op)]


def open_set(name: str, monkeypatch: pytest.MonkeyPatch, threads: int) -> Iterator[Device]:
    monkeypatch.setenv("SATCHEL_CPU", name)
    try:
        opened = find_backend("cpu").open(threads=threads)
    except DeviceError as error:
        pytest.skip(str(error))
    with opened:
        assert opened.info().variant == name
        yield opened


def generator(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


# --- values


def random_blocks(rng: np.random.Generator, format: str, rows: int, k: int) -> Array:
    """Blocks with every possible code: random bytes under finite scales."""
    if format == "f64":
        return rng.standard_normal((rows, k))
    if format in ("f32", "f16", "bf16", "fp8"):
        return encode(format, rng.standard_normal((rows, k)).astype(np.float32))
    dtype = FORMATS[format].dtype
    out = np.frombuffer(rng.bytes(rows * (k // FORMATS[format].block) * dtype.itemsize), dtype).copy()
    for name in ("d", "dmin", "m"):
        if name in (dtype.names or ()):
            out[name] = (rng.standard_normal(len(out)) * 0.1).astype(np.float16).astype(out[name].dtype)
    if format == "iq1_m":  # the last word holds the upper four bits of d
        out["scales"] = out["scales"] & 0xFFF | np.array([0, 0, 0, 0x2000], np.uint16)
    if format == "mxfp4":
        out["e"] = 120 + out["e"] % 8
    if format.startswith("f8_"):  # excludes infinity and NaN
        codes = out[dtype.names[1]]  # type: ignore[index]
        codes[~np.isfinite(FORMATS[format].decode(out)).reshape(codes.shape)] = 0
    return out.reshape(rows, -1)


def encode(format: str, x: Array) -> Array:
    coder = FORMATS[format].encode
    assert coder is not None
    return coder(np.ascontiguousarray(x, np.float32), None)


def f32(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> tuple[Array, str]:
    return (rng.standard_normal(shape) * scale).astype(np.float32), "f32"


def i32(*values: int) -> tuple[Array, str]:
    return np.array(values, np.int32), "i32"


def extremes(rng: np.random.Generator, rows: int, k: int) -> Array:
    """Rows of zeros, of tiny, huge, mixed and outlying values, and of exact ties."""
    x = rng.standard_normal((rows, k)).astype(np.float32)
    kinds = [0.0, 1e-39, 1e-30, 1e30, 1e-3]
    for i, scale in enumerate(kinds):
        x[i % rows] *= np.float32(scale)
    x[rows - 1, ::7] *= 1000
    x[rows - 2] = np.round(x[rows - 2] * 40) / 2
    x[rows - 2, ::32] = 127
    return x
