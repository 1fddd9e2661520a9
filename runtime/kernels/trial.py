"""One step alone on a device with made-up operands: what a kernel gives, and what the op's definition gives.

The operands have the step's own formats and shapes, but for fewer tokens and fewer blocks of a KV cache. The
last row is beyond the step's count, and a kernel must leave it alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from satchel.errors import DeviceError
from satchel.quant import FORMATS
from satchel.runtime.device.device import OUT, STATE, WEIGHT, Device, KernelOverride, pointer
from satchel.runtime.graph import Array
from satchel.runtime.kernels.call import KernelCall, TensorView
from satchel.runtime.ops import OPS
from satchel.runtime.plan import COUNTS_BYTES, BufferSpec, Segment

TOKENS, BLOCKS = 6, 4  # of the trial, at most
FILL = 0x5A
STEP = 4
MOST = 4096  # of a position that stands alone, and of a number that is only moved


def _integers(call: KernelCall, index: int, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Whole numbers that mean something as this input, which its name in the op's definition tells."""
    op = OPS[call.op]
    name = op.sources[index] if index < len(op.sources) else ""
    caches = call.inputs[op.cache]
    if name in ("ids", "rows") and op.indexes is not None:
        source, dimension = op.indexes
        counted = dimension == 0 and call.inputs[source].count >= 0
        beyond = max(1, call.inputs[source].shape[dimension] - counted)
    elif name == "slot":
        beyond = 1
    elif name == "pos" and caches:
        return np.arange(shape[0], dtype=np.int32)
    elif name == "table" and caches:
        blocks = np.arange(shape[0] * shape[1]) % caches[0].shape[0]
        return blocks.reshape(shape).astype(np.int32)
    elif name == "pos" or op.exact:
        beyond = MOST
    else:
        raise DeviceError(f"{call.op}: input {index} holds whole numbers, and no check knows what they mean")
    return rng.integers(0, beyond, shape).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Trial:
    """A step of its own: its call, its tables, the operands in the file's order, and the step's counts."""

    call: KernelCall
    segment: Segment
    operands: tuple[Array, ...]
    counts: tuple[int, ...]

    def rows(self, view: TensorView) -> int:
        """Rows of a view that count."""
        return self.counts[view.count] if view.count >= 0 else view.shape[0]


def trial_of(segment: Segment, step: int, call: KernelCall, device: Device) -> Trial:
    """A step of a segment as one that stands alone."""
    row = segment.step_table[step : step + 1].copy()
    first, n = int(row["view"][0]), int(row["n_in"][0])
    small = replace(
        call,
        output=_small(call.output, call, -1),
        inputs=tuple(_small(v, call, i) for i, v in enumerate(call.inputs)),
    )
    operands = tuple(_operands(small))
    views = segment.view_table[first : first + n + 1].copy()
    buffers = [BufferSpec("step", STEP, COUNTS_BYTES)]
    for i, view in enumerate((small.output, *small.inputs)):
        size = _lay(views[i], view, len(buffers), device)
        buffers.append(BufferSpec(f"operand.{i}", OUT if not i else WEIGHT if view.packed else STATE, size))
    if OPS[call.op].alias:
        views[0]["buffer"], buffers[2] = 2, replace(buffers[2], usage=OUT)
    op = int(row["op"][0])
    row["op"], row["view"] = 0, 0
    alone = replace(
        segment,
        transfers=(),
        steps=segment.steps[step : step + 1],
        step_table=row,
        view_table=views,
        op_table=segment.op_table[op : op + 1],
        buffers=tuple(buffers),
    )
    sizes = [{v.shape[0] for v in (small.output, *small.inputs) if v.count == i} for i in range(8)]
    return Trial(small, alone, operands, tuple(max(1, min(s, default=1) - 1) for s in sizes))


def _small(view: TensorView, call: KernelCall, index: int) -> TensorView:
    most = TOKENS if view.count >= 0 else BLOCKS if is_cache(call, index) else view.shape[0]
    return replace(view, shape=(min(view.shape[0], most), *view.shape[1:]))


def is_cache(call: KernelCall, index: int) -> bool:
    """Whether an input, or the output (-1), lies in the blocks of a cache."""
    op = OPS[call.op]
    caches = range(len(call.inputs))[op.cache]
    return index in caches or (index < 0 and op.alias and bool(caches))


def _lay(row: Mapping[str, object], view: TensorView, buffer: int, device: Device) -> int:
    """Writes a view of its own buffer into the table; gives the bytes of the buffer."""
    width = FORMATS[view.format].row_bytes(int(np.prod(view.shape[1:], dtype=np.int64)))
    stride = 4 * -(-width // 16) * 4 if len(view.shape) > 1 else width
    table: dict[str, object] = row  # type: ignore[assignment]
    table["buffer"], table["offset"], table["stride"] = buffer, 0, stride
    table["shape"] = [*view.shape, 1, 1, 1][:4]
    if not view.packed:
        return max(64, stride * view.shape[0])
    table["stride"] = 0
    return device.packed(FORMATS[view.format].id, *_matrices(view))


def _matrices(view: TensorView) -> tuple[int, int, int]:
    return (1, *view.shape) if len(view.shape) == 2 else view.shape  # type: ignore[return-value]


def _operands(call: KernelCall) -> Iterator[Array]:
    rng = np.random.default_rng(zlib.crc32(repr((call.op, call.inputs)).encode()))
    for i, view in enumerate(call.inputs):
        yield _operand(call, i, view, rng)


def _operand(call: KernelCall, index: int, view: TensorView, rng: np.random.Generator) -> Array:
    format = FORMATS[view.format]
    if view.format in ("i32", "i8", "i16", "i64"):
        return _integers(call, index, rng, view.shape)
    if format.encode is None:
        raise DeviceError(f"{call.op}: input {index} is {view.format}, which nothing here can write")
    values = rng.standard_normal(view.shape, np.float32)
    if index == 0 and view.format == "f32":  # a few far from the others
        values.reshape(-1)[::97] *= 64
    return format.encode(values, None)


def run(trial: Trial, device: Device, override: KernelOverride | None) -> Array:
    """What the device gives, rows beyond the count included, which hold FILL."""
    segment, call = trial.segment, trial.call
    buffers = [device.alloc(b.size, b.usage) for b in segment.buffers]
    try:
        target = int(segment.view_table[0]["buffer"])
        buffers[target].write(0, bytes([FILL]) * buffers[target].size)
        for i, (view, value) in enumerate(zip(call.inputs, trial.operands, strict=True)):
            _write(buffers[i + 2], view, value, int(segment.view_table[i + 1]["stride"]))
        block = bytearray(COUNTS_BYTES)
        np.frombuffer(block, np.int32)[:] = trial.counts
        program = device.compile(segment, buffers, () if override is None else (override,))
        buffers.append(program)  # type: ignore[arg-type]
        program.run(pointer(block), len(block))
        program.wait()
        raw = np.empty(buffers[target].size, np.uint8)
        buffers[target].read_into(0, raw)
    finally:
        for child in reversed(buffers):
            child.close()
    return _read(raw, call.output, int(segment.view_table[0]["stride"]))


def _write(buffer: object, view: TensorView, value: Array, stride: int) -> None:
    flat = np.ascontiguousarray(value).reshape(len(value), -1).view(np.uint8)
    if view.packed:
        buffer.pack(0, FORMATS[view.format].id, _matrices(view), flat)  # type: ignore[attr-defined]
        return
    wide = np.zeros((len(flat), stride), np.uint8)
    wide[:, : flat.shape[1]] = flat
    buffer.write(0, wide)  # type: ignore[attr-defined]


def _read(raw: Array, view: TensorView, stride: int) -> Array:
    format = FORMATS[view.format]
    shape = (*view.shape[:-1], view.shape[-1] // format.block)
    width = int(np.prod(shape[1:], dtype=np.int64)) * format.dtype.itemsize
    rows = np.ascontiguousarray(raw[: stride * shape[0]].reshape(shape[0], stride)[:, :width])
    return rows.view(format.dtype).reshape(shape)


def define(trial: Trial) -> Array:
    """What the op's definition gives, for the rows that count."""
    call, op = trial.call, OPS[trial.call.op]
    given = [a[: trial.rows(v)] for a, v in zip(trial.operands, call.inputs, strict=True)]
    args = {**op.defaults, **call.args}
    if "format" in op.arguments:
        args["format"] = call.output.format
    return op.define(*given, **args)


def error_of(trial: Trial, got: Array, want: Array) -> float:
    """Squared error over the square of `want`; infinite where a number is missing, or a row beyond the step's
    count was written.
    """
    n = len(want)
    beyond = np.ascontiguousarray(got[n:]).view(np.uint8)
    if not np.all(beyond == FILL) and trial.call.output.count >= 0:
        return float("inf")
    decode = FORMATS[trial.call.output.format].decode
    a, b = decode(got[:n]).astype(np.float64), decode(want).astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    finite = np.isfinite(b)
    return float(np.square(a[finite] - b[finite]).sum()) / (float(np.square(b[finite]).sum()) or 1.0)
