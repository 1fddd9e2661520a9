"""The steps of search_loops.py in plain numpy, with the same results bit for bit: for the tests, and where
numba is not.

Sums run in element order (cumsum, not numpy's pairwise sum) because the loops add in that order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from satchel.quant.search_loops import (
    F32,
    INF,
    LEAST_SIGNED,
    MOST_SIGNED,
    ONE,
    TOP_UNIT,
    TWO,
    ZERO,
)


def _sum(terms: npt.NDArray[np.floating]) -> F32:
    """[tiles, size, lanes] in order over size, from zero."""
    total: F32 = np.cumsum(terms, axis=1, dtype=np.float32)[:, -1] + ZERO
    return total


def _inverse(step: F32, one: F32 | np.float32 = ONE) -> F32:
    found: F32 = np.where(step != 0, one / np.where(step != 0, step, ONE), ZERO)
    return found


def _nearest(scaled: F32, least: float, most: float) -> F32:
    clipped: F32 = np.clip(np.rint(scaled), np.float32(least), np.float32(most))
    return clipped


def tile(x: F32, factor: F32, out: F32) -> None:
    size, lanes = out.shape[1:]
    groups = (x * factor[:, None]).reshape(-1, size)
    filled = np.zeros((len(out) * lanes, size), np.float32)
    filled[: len(groups)] = groups
    out[...] = filled.reshape(-1, lanes, size).transpose(0, 2, 1)


def scale_groups(x: F32, w: F32, least: float, most: float, tries: F32) -> F32:
    place = np.abs(x).argmax(axis=1)[:, None]
    extreme = np.take_along_axis(x, place, axis=1)[:, 0]
    scales = extreme / np.float32(least)
    best, best_square = np.zeros_like(extreme), np.ones_like(extreme)
    for steps in tries:
        q = _nearest(_inverse(extreme, steps)[:, None] * x, least, most)
        sxq, sqq = _sum(w * q * x), _sum(w * q * q)
        wins = (sqq > 0) & (sxq * sxq * best_square > best * sqq)
        best, best_square = np.where(wins, sxq * sxq, best), np.where(wins, sqq, best_square)
        scales = np.where(wins, sxq / np.where(wins, sqq, ONE), scales)
    return scales


def affine_groups(x: F32, w: F32, top: float, free: bool, tries: F32) -> tuple[F32, F32]:
    low = x.min(axis=1)
    low = low if free else np.where(low < 0, low, ZERO)
    span = x.max(axis=1) - low
    sw, sx, sxx = _sum(w), _sum(w * x), _sum(w * x * x)
    scales, bases, best = span / np.float32(top), low.copy(), np.full(low.shape, INF)
    for steps in tries:
        q = _nearest(_inverse(span, steps)[:, None] * (x - low[:, None]), 0, top)
        sq, sqq, sxq = _sum(w * q), _sum(w * q * q), _sum(w * q * x)
        determinant = sw * sqq - sq * sq
        usable = determinant > 0
        safe_det, safe_sqq = np.where(usable, determinant, ONE), np.where(usable, sqq, ONE)
        s, b = (sw * sxq - sx * sq) / safe_det, (sqq * sx - sq * sxq) / safe_det
        bound = (b > 0) & (not free)
        s, b = np.where(bound, sxq / safe_sqq, s), np.where(bound, ZERO, b)
        error = sxx - TWO * s * sxq - TWO * b * sx + s * s * sqq + TWO * s * b * sq + b * b * sw
        wins = usable & (s > 0) & (error < best)
        best, scales, bases = np.where(wins, error, best), np.where(wins, s, scales), np.where(wins, b, bases)
    return scales, bases


def scale_refine(x: F32, w: F32, d: F32, units: F32, least: float, most: float) -> None:
    start, best = units.copy(), np.full(units.shape, INF)
    for move in (ZERO, -ONE, ONE):
        unit = start + move
        step = (d * unit)[:, None]
        miss = x - step * _nearest(_inverse(step) * x, least, most)
        error = _sum(w * miss * miss)
        wins = (unit >= LEAST_SIGNED) & (unit <= MOST_SIGNED) & (error < best)
        best = np.where(wins, error, best)
        units[...] = np.where(wins, unit, units)


def scale_fit(x: F32, w: F32, d: F32, units: F32, least: float, most: float, keep: bool) -> tuple[F32, F32]:
    step = (d * units)[:, None]
    q = _nearest(_inverse(step) * x, least, most)
    a, miss = units[:, None] * q, x - step * q
    sums = np.stack([_sum(w * miss * miss), _sum(w * x * a), _sum(w * a * a)])
    return q if keep else q[-1:], sums


def affine_refine(x: F32, w: F32, d: F32, dmin: F32, units: F32, lows: F32, top: float) -> None:
    unit0, low0, best = units.copy(), lows.copy(), np.full(units.shape, INF)
    for move in (4, 1, 7, 3, 5, 0, 2, 6, 8):
        unit, low = unit0 + np.float32(move // 3 - 1), low0 + np.float32(move % 3 - 1)
        step, v = (d * unit)[:, None], x + (dmin * low)[:, None]
        miss = v - step * _nearest(_inverse(step) * v, 0, top)
        error = _sum(w * miss * miss)
        inside = (unit >= 0) & (unit <= TOP_UNIT) & (low >= 0) & (low <= TOP_UNIT)
        wins = inside & (error < best)
        best = np.where(wins, error, best)
        units[...], lows[...] = np.where(wins, unit, units), np.where(wins, low, lows)


def affine_fit(
    x: F32, w: F32, d: F32, dmin: F32, units: F32, lows: F32, top: float, keep: bool
) -> tuple[F32, F32]:
    step, v = (d * units)[:, None], x + (dmin * lows)[:, None]
    q = _nearest(_inverse(step) * v, 0, top)
    miss, p, r = v - step * q, w * x, w * q
    error, sw, sx, sxq, sq, sqq = map(_sum, (w * miss * miss, w, p, p * q, r, r * q))
    u, low = units, -lows
    return q if keep else q[-1:], np.stack(
        [error, u * sxq, low * sx, u * u * sqq, u * low * sq, low * low * sw]
    )
