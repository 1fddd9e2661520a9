"""The steps of step_loops.py, and the searches of affine_loops.py and scale_loops.py, in plain numpy, with
the same results bit for bit: for the tests, and where numba is not.

Sums run in element order (cumsum, not numpy's pairwise sum) because the loops add in that order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from satchel.quant.pack import U8
from satchel.quant.search.lanes import Lanes, lanes
from satchel.quant.search.scales import F64, better, half, unit, whole
from satchel.quant.search.step_loops import (
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


def scale_groups(x: F32, w: F32, least: float, most: float, tries: F32) -> F32:
    place = np.abs(x).argmax(axis=1)[:, None]
    extreme = np.take_along_axis(x, place, axis=1)[:, 0] + ZERO
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
    low = low + ZERO if free else np.where(low < 0, low, ZERO)
    span = x.max(axis=1) - low + ZERO
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


def scale_fit(x: F32, w: F32, d: F32, units: F32, least: float, most: float) -> F32:
    step = (d * units)[:, None]
    q = _nearest(_inverse(step) * x, least, most)
    a, miss = units[:, None] * q, x - step * q
    return np.stack([_sum(w * miss * miss), _sum(w * x * a), _sum(w * a * a)])


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


def affine_fit(x: F32, w: F32, d: F32, dmin: F32, units: F32, lows: F32, top: float) -> F32:
    step, v = (d * units)[:, None], x + (dmin * lows)[:, None]
    q = _nearest(_inverse(step) * v, 0, top)
    miss, p, r = v - step * q, w * x, w * q
    error, sw, sx, sxq, sq, sqq = map(_sum, (w * miss * miss, w, p, p * q, r, r * q))
    u, low = units, -lows
    return np.stack([error, u * sxq, low * sx, u * u * sqq, u * low * sq, low * low * sw])


def nearest_codes(a: Lanes, step: F32, base: F32, least: int, most: int) -> U8:
    """Nearest codes under each group's step and base [tiles, LANES], counted from `least`."""
    q = _nearest(_inverse(step)[:, None] * (a.x + base[:, None]), least, most)
    return a.codes(q - np.float32(least))


def symmetric(x: F32, share: F32 | None, zero: int, tries: F32) -> tuple[F64, U8]:
    a = lanes(x, share, x.shape[1])
    scale = scale_groups(a.x, a.w, -zero, zero - 1, tries)
    d = half(a.blocks(scale)[:, 0] * a.power)
    return d, nearest_codes(a, a.each(d), np.zeros_like(scale), -zero, zero - 1)


def affine(x: F32, share: F32 | None, top: int, tries: F32) -> tuple[F64, F64, U8]:
    a = lanes(x, share, 32)
    found = affine_groups(a.x, a.w, top, True, tries)
    d, m = (half(a.blocks(part)[:, 0] * a.power) for part in found)
    return d, m, nearest_codes(a, a.each(d), a.each(-m), 0, top)


def affine_super(x: F32, share: F32 | None, top: int, tries: F32, rounds: int) -> tuple[F64, F64, U8, U8, U8]:
    a = lanes(x, share, 32)
    found = affine_groups(a.x, a.w, top, False, tries)
    scale, low = a.blocks(found[0]) * a.power[:, None], a.blocks(ZERO - found[1]) * a.power[:, None]
    d, dmin = unit(scale.max(axis=1) / 63), unit(low.max(axis=1) / 63)
    units, lows = (a.spread(whole(s, part, 0, 63)) for s, part in ((scale, d), (low, dmin)))
    best: tuple[F64, ...] = ()
    for turn in range(rounds + 1):
        of_lane = a.each(d), a.each(dmin)
        if turn < rounds:
            affine_refine(a.x, a.w, *of_lane, units, lows, top)
        sums = affine_fit(a.x, a.w, *of_lane, units, lows, top)
        error, least = a.totals(sums)
        best = better(best, (error, d, dmin, a.blocks(units), a.blocks(lows)))
        d, dmin = solve(d, dmin, least, a.power)
    _, d, dmin, of_scale, of_low = best
    steps, bases = a.each(d) * a.spread(of_scale), a.each(dmin) * a.spread(of_low)
    return d, dmin, of_scale.astype(np.uint8), of_low.astype(np.uint8), nearest_codes(a, steps, bases, 0, top)


def solve(d: F64, dmin: F64, sums: F64, power: F64) -> tuple[F64, F64]:
    """d and dmin [blocks] of least squares for the codes that gave these sums [5, blocks] of affine_fit; as
    they were where there is none.
    """
    sxa, sxb, saa, sab, sbb = sums
    determinant = saa * sbb - sab * sab
    safe = np.where(determinant > 0, determinant, 1.0)
    fit, fit_min = (sbb * sxa - sab * sxb) / safe, (saa * sxb - sab * sxa) / safe
    both = (determinant > 1e-6 * saa * sbb) & (fit > 0) & (fit_min >= 0)
    alone = ~both & (saa > 0) & (sbb == 0)
    only = sxa / np.where(alone, saa, 1.0)
    found = np.where(both, fit * power, np.where(alone, only * power, d))
    return half(found), half(np.where(both, fit_min * power, dmin))


def symmetric_super(
    x: F32, share: F32 | None, zero: int, tries: F32, rounds: int
) -> tuple[F64, npt.NDArray[np.int8], U8]:
    a = lanes(x, share, 16)
    scale = a.blocks(scale_groups(a.x, a.w, -zero, zero - 1, tries)) * a.power[:, None]
    extreme = np.take_along_axis(scale, np.abs(scale).argmax(axis=1)[:, None], axis=1)[:, 0]
    d = unit(extreme / -128)
    units = a.spread(whole(scale, d, -128, 127))
    best: tuple[F64, ...] = ()
    for turn in range(rounds + 1):
        of_lane = a.each(d)
        if turn < rounds:
            scale_refine(a.x, a.w, of_lane, units, -zero, zero - 1)
        sums = scale_fit(a.x, a.w, of_lane, units, -zero, zero - 1)
        error, (sxa, saa) = a.totals(sums)
        best = better(best, (error, d, a.blocks(units)))
        d = half(np.where(saa > 0, sxa / np.where(saa > 0, saa, 1.0) * a.power, d))
    _, d, of_scale = best
    steps = a.each(d) * a.spread(of_scale)
    return d, of_scale.astype(np.int8), nearest_codes(a, steps, np.zeros_like(steps), -zero, zero - 1)
