"""Integer checkpoints (GPTQ, AWQ, compressed-tensors): read as codes with a grid, then repacked as GGUF
blocks.

A tensor that no block format represents exactly (act-order columns, scales out of float16's range) becomes
16-bit floats, and its note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from satchel.errors import ModelError
from satchel.formats.convert.codes import Codes, Grid, choose, join, numbers, unpack
from satchel.formats.convert.logical import Logical, Rows, retyped
from satchel.formats.convert.stored import Array, Stored

Tensors = Mapping[str, Stored]
Open = Callable[[], Callable[[int, int], Codes]]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column that each nibble of a word holds, the lowest first
BITS = (2, 3, 4, 8)
FLOATS = ("F16", "BF16", "F32")


def gptq(tensors: Tensors, config: Mapping[str, Any], extensions: bool) -> Iterator[Logical]:
    """Every `<base>.qweight` [K * bits / 32, N] with its qzeros, scales [K / group, N] and g_idx [K].

    Version 1 of the format stores zero - 1, gptq_v2 (`checkpoint_format`) the zero itself.
    """
    less = 0 if config.get("checkpoint_format") == "gptq_v2" else 1
    for name, weight in tensors.items():
        base = name.removesuffix(".qweight")
        if base == name:
            continue
        scales, zeros = (_find(tensors, base, part, weight) for part in ("scales", "qzeros"))
        _expect(weight, "I32", None, None)
        _expect(zeros, "I32", None, None)
        rows = weight.shape[1]
        groups, bits = scales.rows, zeros.shape[-1] * 32 // max(rows, 1)
        if bits not in BITS:
            raise _fault(zeros, f"{rows} zeros of 2, 3, 4 or 8 bits in a row", list(zeros.shape))
        columns = weight.shape[0] * 32 // bits
        _expect(scales, None, groups, rows)
        _expect(zeros, "I32", groups, rows * bits // 32)
        group = _group(scales, columns, groups)
        zero = unpack(zeros.all(), bits).T + np.int16(less)
        grid = Grid(np.ascontiguousarray(scales.floats().T), np.ascontiguousarray(zero), group, bits)
        used: tuple[str, ...] = (name, scales.name, zeros.name)
        index = tensors.get(f"{base}.g_idx")
        if index is not None:
            used += (index.name,)
        if index is not None and index.shape != (0,):
            order = _order(index, columns)
            if not np.array_equal(order, np.arange(columns) // group):
                yield _ordered(base, weight, grid, order, index, used, _columns(weight, bits))
                continue
        yield _logical(base, (rows, columns), grid, _columns(weight, bits), used, scales, extensions)


def _columns(weight: Stored, bits: int) -> Open:
    """Codes of GPTQ's rows, which stand in the file as columns."""

    def begin() -> Callable[[int, int], Codes]:
        words = weight.all()
        return lambda first, last: unpack(words[:, first:last].T, bits)

    return begin


def _ordered(
    base: str,
    weight: Stored,
    grid: Grid,
    order: npt.NDArray[np.int64],
    index: Stored,
    used: tuple[str, ...],
    begin: Open,
) -> Logical:
    """Columns in an order of their own (act-order): a block's 32 numbers share no scale, so floats it is."""
    if order.size and not 0 <= order.min() <= order.max() < grid.scale.shape[1]:
        raise _fault(index, f"groups from 0 to {grid.scale.shape[1] - 1}", int(order.max()))

    def open_rows() -> Rows:
        codes = begin()

        def rows(first: int, last: int) -> Array:
            scale, zero = grid.scale[first:last][:, order], grid.zero[first:last][:, order]
            return np.asarray(scale * (codes(first, last) - zero).astype(np.float32))

        return rows

    shape = (grid.scale.shape[0], len(order))
    floats = Logical(f"{base}.weight", shape, "f32", open_rows, used, weight.where)
    return retyped(floats, "f16", "GPTQ with columns in an order of their own: as f16")


def awq(tensors: Tensors, extensions: bool) -> Iterator[Logical]:
    """Every `<base>.qweight` [K, N / 8] with its qzeros [K / group, N / 8] and scales [K / group, N]: four
    bits in AWQ's order of nibbles."""
    for name, weight in tensors.items():
        base = name.removesuffix(".qweight")
        if base == name:
            continue
        scales, zeros = (_find(tensors, base, part, weight) for part in ("scales", "qzeros"))
        _expect(weight, "I32", None, None)
        columns, rows, groups = weight.shape[0], weight.shape[1] * 8, scales.rows
        _expect(scales, None, groups, rows)
        _expect(zeros, "I32", groups, rows // 8)
        group = _group(scales, columns, groups)
        zero = np.ascontiguousarray(_awq_codes(zeros.all()).T)
        grid = Grid(np.ascontiguousarray(scales.floats().T), zero, group, 4)
        used = (name, scales.name, zeros.name)
        yield _logical(base, (rows, columns), grid, _awq_columns(weight), used, scales, extensions)


def _awq_codes(words: Array) -> Codes:
    """[n, m] words -> [n, 8 m] codes."""
    codes = unpack(words, 4).reshape(words.shape[0], -1, 8)
    out = np.empty_like(codes)
    out[..., AWQ_ORDER] = codes
    return out.reshape(words.shape[0], -1)


def _awq_columns(weight: Stored) -> Open:
    def begin() -> Callable[[int, int], Codes]:
        words = weight.all()

        def rows(first: int, last: int) -> Codes:
            start = first // 8
            codes = _awq_codes(words[:, start : -(-last // 8)])
            return np.ascontiguousarray(codes[:, first - 8 * start : last - 8 * start].T)

        return rows

    return begin


def compressed(tensors: Tensors, extensions: bool) -> Iterator[Logical]:
    """compressed-tensors' integers: `<base>.weight_packed` [N, K / (32 / bits)], codes offset by half their
    range, or `<base>.weight` of int8 [N, K]; with weight_scale [N, groups] and perhaps weight_zero_point.
    """
    for name, weight in tensors.items():
        if name.endswith(".weight_packed"):
            yield _pack_quantized(tensors, name.removesuffix(".weight_packed"), weight, extensions)
        elif name.endswith(".weight") and weight.dtype == "I8":
            yield _int_quantized(tensors, name.removesuffix(".weight"), weight, extensions)


def _pack_quantized(tensors: Tensors, base: str, weight: Stored, extensions: bool) -> Logical:
    scales = _find(tensors, base, "weight_scale", weight)
    size = _find(tensors, base, "weight_shape", weight)
    _expect(weight, "I32", None, None)
    if size.shape != (2,) or size.dtype not in ("I32", "I64"):
        raise _fault(size, "I64 [2]", f"{size.dtype} {list(size.shape)}")
    rows, columns = (int(n) for n in size.all())
    bits = 32 * weight.shape[1] // columns if columns > 0 else 0
    if rows != weight.shape[0] or bits not in (4, 8) or columns * bits != 32 * weight.shape[1]:
        raise _fault(
            size, f"{weight.shape[0]} rows of 4 or 8 bits in {weight.shape[1]} words", [rows, columns]
        )
    _expect(scales, None, rows, None)
    group = _group(scales, columns, scales.shape[1])
    half = np.int16(1 << bits - 1)
    zero = np.full(scales.shape, half, np.int16)
    used = [weight.name, scales.name, size.name]
    points = tensors.get(f"{base}.weight_zero_point")
    if points is not None:
        # Packed along the rows, with the same offset as the codes.
        _expect(points, "I32", -(-rows * bits // 32), scales.shape[1])
        zero = np.ascontiguousarray(unpack(points.all().T, bits).T[:rows])
        used.append(points.name)
    index = tensors.get(f"{base}.weight_g_idx")
    grid = Grid(scales.floats(), zero, group, bits)

    def begin() -> Callable[[int, int], Codes]:
        return lambda first, last: unpack(weight.read(first, last), bits)

    if index is not None:
        used.append(index.name)
    if index is not None and index.shape != (0,):
        order = _order(index, columns)
        if order.min(initial=0) >= 0 and not np.array_equal(order, np.arange(columns) // group):
            return _ordered(base, weight, grid, order, index, tuple(used), begin)
    return _logical(base, (rows, columns), grid, begin, tuple(used), scales, extensions)


def _int_quantized(tensors: Tensors, base: str, weight: Stored, extensions: bool) -> Logical:
    scales = _find(tensors, base, "weight_scale", weight)
    if len(weight.shape) != 2:
        raise _fault(weight, "a matrix", list(weight.shape))
    rows, columns = weight.shape
    scale = _grouped(scales, rows, FLOATS).astype(np.float32)
    used = [weight.name, scales.name]
    group = _group(scales, columns, scale.shape[1])
    zero = np.full(scale.shape, 128, np.int16)
    points = tensors.get(f"{base}.weight_zero_point")
    if points is not None:
        used.append(points.name)
        shift = _grouped(points, rows, ("I8",))
        if shift.shape != scale.shape:
            raise _fault(points, f"the shape {list(scale.shape)} of the scales", list(points.shape))
        zero += shift.astype(np.int16)
    grid = Grid(np.ascontiguousarray(scale), np.ascontiguousarray(zero), group, 8)

    def begin() -> Callable[[int, int], Codes]:
        return lambda first, last: weight.read(first, last).astype(np.int16) + np.int16(128)

    return _logical(base, (rows, columns), grid, begin, tuple(used), scales, extensions)


def _grouped(tensor: Stored, rows: int, dtypes: tuple[str, ...]) -> Array:
    """[rows, groups] of a tensor with one number, one for each row, or one for each of a row's groups."""
    shape = tensor.shape if len(tensor.shape) == 2 else (prod(tensor.shape), 1)
    if tensor.dtype not in dtypes or len(tensor.shape) > 2 or shape[0] not in (1, rows):
        wanted = f"{' or '.join(dtypes)}: one, or one for each of {rows} rows"
        raise _fault(tensor, wanted, f"{tensor.dtype} {list(tensor.shape)}")
    values = tensor.floats() if tensor.dtype in FLOATS else tensor.all()
    return np.broadcast_to(values.reshape(shape), (rows, shape[1]))


def _logical(
    base: str,
    shape: tuple[int, int],
    grid: Grid,
    begin: Open,
    used: tuple[str, ...],
    scales: Stored,
    extensions: bool,
) -> Logical:
    """The tensor in the smallest format that holds its grid, else in 16 bits."""
    name = f"{base}.weight"
    if not np.isfinite(grid.scale).all():
        raise _fault(scales, "finite scales", "NaN or infinity")
    target = choose(grid, extensions)

    def part(first: int, last: int) -> Grid:
        return Grid(grid.scale[first:last], grid.zero[first:last], grid.group, grid.bits)

    if target:

        def blocks() -> Rows:
            codes = begin()
            return lambda first, last: join(part(first, last), codes(first, last), target)

        return Logical(
            name, shape, target, blocks, used, scales.where, f"{grid.bits}-bit codes kept in {target}"
        )

    def floats() -> Rows:
        codes = begin()
        return lambda first, last: numbers(part(first, last), codes(first, last))

    half = "f16" if scales.dtype == "F16" else "bf16"
    note = f"{grid.bits}-bit codes in groups of {grid.group} fit no type exactly: as {half}"
    return retyped(Logical(name, shape, "f32", floats, used, scales.where), half, note)


def _order(index: Stored, columns: int) -> npt.NDArray[np.int64]:
    """The group of each column."""
    if index.shape != (columns,) or index.dtype not in ("I32", "I64"):
        raise _fault(index, f"I32 [{columns}]", f"{index.dtype} {list(index.shape)}")
    return index.all().astype(np.int64)


def _find(tensors: Tensors, base: str, part: str, beside: Stored) -> Stored:
    found = tensors.get(f"{base}.{part}")
    if found is None:
        raise ModelError(
            f"{beside.where}: {base}.{part} is missing beside {beside.name}; the checkpoint is incomplete"
        )
    return found


def _fault(tensor: Stored, expected: str, got: object) -> ModelError:
    return ModelError(
        f"{tensor.where}: {tensor.name}: expected {expected}, got {got}; the checkpoint is damaged or of a"
        " format that this version does not know"
    )


def _expect(tensor: Stored, dtype: str | None, rows: int | None, columns: int | None) -> None:
    """ModelError where a matrix has another type or shape; None means any."""
    fits = len(tensor.shape) == 2 and all(
        want in (None, have) for want, have in zip((rows, columns), tensor.shape, strict=True)
    )
    if not fits or tensor.dtype not in ((dtype,) if dtype else FLOATS):
        wanted = [n if n is not None else "any" for n in (rows, columns)]
        kind = dtype or "F16, BF16 or F32"
        raise _fault(tensor, f"{kind} {wanted}", f"{tensor.dtype} {list(tensor.shape)}")


def _group(scales: Stored, columns: int, groups: int) -> int:
    if groups < 1 or columns < 1 or columns % groups:
        raise _fault(scales, f"a number of groups that divides {columns} columns", groups)
    return columns // groups
