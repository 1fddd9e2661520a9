"""Vectors of WIDTH float32, of which the scale searches are made: arrays in plain Python, and one register
each in compiled loops (compiled.py).

Vectors have + - * / and comparisons, masks have & and |, lane by lane. Nothing is reordered or fused, but by
`fused`, which is exact; so both ways give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from satchel.quant.format import F32

WIDTH = 16
Vector = npt.NDArray[Any]  # (WIDTH,) of float32: arithmetic keeps it, which numpy's stubs don't know
Mask = npt.NDArray[np.bool_]


def if_any(share: F32 | None, w: F32) -> F32 | None:
    """w; None where there is no share, which compiled code knows when it is compiled."""
    return None if share is None else w


def splat(x: float | np.float32) -> Vector:
    """A float32 in every lane."""
    return np.full(WIDTH, x, np.float32)


def fetch(a: F32, at: int) -> Vector:
    """Elements at .. at + WIDTH of a contiguous array, whatever its shape."""
    return a.reshape(-1)[at : at + WIDTH].copy()


def put(a: F32, at: int, x: Vector) -> None:
    """The inverse of fetch."""
    a.reshape(-1)[at : at + WIDTH] = x


def turn(to: F32, to_at: int, to_stride: int, a: F32, at: int, stride: int) -> None:
    """A square of WIDTH rows of WIDTH numbers, its rows the columns of the other."""
    side = np.arange(WIDTH)
    square = a.reshape(-1)[at + side + stride * side[:, None]]
    to.reshape(-1)[to_at + side[:, None] + to_stride * side] = square


def put_bytes(a: npt.NDArray[np.uint8], at: int, x: Vector) -> None:
    """Whole numbers from 0 to 255 as bytes."""
    a.reshape(-1)[at : at + WIDTH] = x.astype(np.uint8)


def nearest(x: Vector) -> Vector:
    """Whole numbers, ties to even."""
    return np.rint(x)


def size_of(x: Vector) -> Vector:
    return np.abs(x)


def at_least(least: Vector, x: Vector) -> Vector:
    """The larger; a NaN of x stays."""
    return np.where(least > x, least, x)


def at_most(most: Vector, x: Vector) -> Vector:
    """The smaller; a NaN of x stays."""
    return np.where(most < x, most, x)


def pick(mask: Mask, yes: Vector, no: Vector) -> Vector:
    return np.where(mask, yes, no)


def fused(a: Vector, b: Vector, c: Vector) -> Vector:
    """a * b + c, rounded once or twice: for whole numbers below 2^24 alone, where that is the same."""
    found: Vector = a * b + c
    return found
