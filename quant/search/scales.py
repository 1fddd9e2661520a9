"""Common code of the scale searches: error weights, rounding of scales to their fields, and the better of two
results per block.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from satchel.quant.format import F32
from satchel.quant.pack import F16, rows, to_f16

F64 = npt.NDArray[np.float64]


def weights(x: F32, importance: F32 | None) -> F64:
    """Weight of each element's squared error, for x (..., n, block): 1, or the importance of its column.

    Importance is the mean square of the activations that a column meets: the sum is the error of the product.
    Weights that grow with |x|, as ggml has them, gave more divergence on the bundled model, not less.
    """
    if importance is None:
        return np.ones(x.shape)
    row = np.asarray(importance, np.float64).reshape(x.shape[-2:])
    return np.broadcast_to(row, x.shape).copy()


def shares(importance: F32 | None, block: int) -> F32:
    """The weight of an error at each place of a row's blocks (row / block, block): the importance of its
    column, in shares of its block's largest, but no less than a ten-millionth of that; 1 (1, block) where
    there is none.
    """
    if importance is None:
        return np.ones((1, block), np.float32)
    column = np.asarray(importance, np.float64).reshape(-1, block)
    top = column.max(axis=1, keepdims=True)
    share = np.maximum(column / np.where(top > 0, top, 1.0), np.where(top > 0, 1e-7, 1.0))
    return share.astype(np.float32)


def floored(w: F64) -> F64:
    """Weights (blocks, ...), none less than a ten-millionth of its block's largest: numbers that no input has
    met (an expert that was never chosen) still get their nearest codes.
    """
    most = w.max(axis=tuple(range(1, w.ndim)), keepdims=True)
    return np.maximum(w, np.where(most > 0, most * 1e-7, 1.0))


def groups(x: F32, importance: F32 | None, block: int, group: int) -> tuple[tuple[int, ...], F64, F64]:
    """Leading shape with the block count, then x and its floored weights as (blocks, groups, group)."""
    blocks = rows(x, block)
    shape = (blocks.size // block, block // group, group)
    values = blocks.reshape(shape).astype(np.float64)
    if importance is None:
        return blocks.shape[:-1], values, np.ones(shape)
    row = floored(np.asarray(importance, np.float64).reshape(-1, *shape[1:]))  # every row's
    every = np.broadcast_to(row, (len(values) // len(row), *row.shape))
    # A copy of its own: where a row is one block, the reshaped array would repeat that block's memory.
    return blocks.shape[:-1], values, np.ascontiguousarray(every.reshape(shape))


def half(x: F64) -> F64:
    """x rounded to what an f16 field can store."""
    return to_f16(x.astype(np.float32)).astype(np.float64)


def unit(x: F64) -> F64:
    """The unit of group scales: x rounded to f16, upwards in magnitude where f16 is coarse (subnormal).

    Rounded down, or to zero, the largest group scale would no longer be in reach of its few bits.
    """
    coarse = np.copysign(np.ceil(np.abs(x) * 2.0**24) * 2.0**-24, x)
    found: F64 = np.where(np.abs(x) < 2.0**-14, coarse, half(x))
    return found


def whole(x: F64, d: F64, least: int, most: int) -> F64:
    """x (blocks, groups) in units of d (blocks,), whole; 0 where d is 0 or infinite."""
    by = d[:, None]
    q = np.rint(np.where((by != 0) & np.isfinite(by), x / by, 0.0))
    clipped: F64 = np.clip(q, least, most)
    return clipped


def better(old: tuple[F64, ...], new: tuple[F64, ...]) -> tuple[F64, ...]:
    """Block by block the set of smaller error (first of each tuple); the older one where they are equal, the
    new one where there is none.
    """
    if not old:
        return new
    wins = ~(old[0] <= new[0])
    return tuple(np.where(wins.reshape(-1, *[1] * (a.ndim - 1)), b, a) for a, b in zip(old, new, strict=True))


def as_f16(x: F64, lead: tuple[int, ...]) -> F16:
    """Scales of blocks as f16. A NaN gets one form, since its bits depend on the order of operands."""
    return to_f16(np.where(np.isnan(x), np.nan, x).astype(np.float32)).reshape(lead)
