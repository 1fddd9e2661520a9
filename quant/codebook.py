"""Common code of the codebook formats: their tables as arrays, sign groups of even parity, small bit fields.

Tables are made at first use and read only.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from satchel.quant.format import F32
from satchel.quant.grids import points
from satchel.quant.pack import U8

# The sixteen values of iq4_nl and iq4_xs: closer together near zero, where most weights are.
NONLINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
# Twice the values of FP4 (E2M1), sign in the top bit: doubled, they are whole numbers.
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


@functools.cache
def grid(name: str) -> F32:
    """(points, width) of the codebook of this format."""
    table = np.array(points(name), np.float32)
    table.flags.writeable = False
    return table


def fields(words: npt.NDArray[Any], width: int, count: int) -> npt.NDArray[Any]:
    """(...) unsigned words -> (..., count) fields of `width` bits, the lowest first."""
    shifts = (np.arange(count) * width).astype(words.dtype)
    mask = words.dtype.type((1 << width) - 1)
    found: npt.NDArray[Any] = np.asarray(words)[..., None] >> shifts & mask
    return found


def join(parts: npt.NDArray[Any], width: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The inverse of `fields`: (..., count) -> (...) words of `dtype`."""
    parts = parts.astype(dtype, copy=False)
    words: npt.NDArray[Any] = parts[..., 0].copy()
    for i in range(1, parts.shape[-1]):  # field by field: ufuncs over a short axis take several times as long
        words |= parts[..., i] << np.array(i * width, dtype)
    return words


def flattened(parts: npt.NDArray[Any], axes: int = 2) -> npt.NDArray[Any]:
    """The last `axes` dimensions as one."""
    return parts.reshape(*parts.shape[:-axes], int(np.prod(parts.shape[-axes:])))


def bits_to_signs(bits: U8) -> F32:
    """(...) bytes -> (..., 8) of 1 and -1: a set bit is minus."""
    return np.float32(1) - np.float32(2) * fields(bits, 1, 8).astype(np.float32)


@functools.cache
def even_signs() -> F32:
    """(128, 8) signs for a field of seven bits: the eighth makes the number of minus signs even."""
    seven = np.arange(128, dtype=np.uint8)
    parity = fields(seven, 1, 7).sum(axis=-1, dtype=np.uint8) & 1
    table = bits_to_signs(seven | parity << np.uint8(7))
    table.flags.writeable = False
    return table


def split_runs(packed: U8, width: int) -> U8:
    """(..., 32 n) bytes -> codes of `width` bits: per run of 32 bytes the lowest field of each, then the
    next.
    """
    runs = packed.reshape(*packed.shape[:-1], packed.shape[-1] // 32, 1, 32)
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    return flattened(runs >> shifts & np.uint8((1 << width) - 1), 3)


def join_runs(codes: U8, width: int) -> U8:
    """The inverse of split_runs, for codes below 1 << width."""
    per = 8 // width
    runs = codes.reshape(*codes.shape[:-1], codes.shape[-1] // (32 * per), per, 32)
    return flattened(join(np.moveaxis(runs, -2, -1), width, np.uint8))
