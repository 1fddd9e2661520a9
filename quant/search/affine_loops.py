"""Searches of the formats with scales and bases, each one compiled function from numbers to codes.

The same as numpy_steps.py bit for bit; the steps are those of step_loops.py.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.format import F32
from satchel.quant.jit.simd.vectors import if_any
from satchel.quant.search.block_loops import F64, TILES, U8, half, load, spread, store, unit, whole
from satchel.quant.search.step_loops import LANES, ZERO, affine_fit, affine_groups, affine_refine


def affine(x: F32, share: F32 | None, top: int, tries: F32) -> tuple[F64, F64, U8]:
    """x = d * q + m, q <= top, for blocks (n, 32): d, m (n,), q (n, 32)."""
    count = x.shape[0]
    d, m, q = np.empty(count), np.empty(count), np.empty((count, 32), np.uint8)
    tiles, flat = np.empty((2, TILES, 32, LANES), np.float32), np.empty((2, TILES, LANES), np.float32)
    power, best_d, best_m = np.empty((3, TILES * LANES))
    for first in range(0, count, TILES * LANES):
        n = min(TILES, -(-(count - first) // LANES))
        near, w, of_d, of_m = tiles[0, :n], tiles[1, :n], flat[0, :n], flat[1, :n]
        load(x, share, first, near, w, power)
        scales, bases = affine_groups(near, if_any(share, w), top, True, tries)
        for b in range(n * LANES):
            best_d[b] = half(np.float64(scales[b // LANES, b % LANES]) * power[b])
            best_m[b] = -half(np.float64(bases[b // LANES, b % LANES]) * power[b])
        spread(best_d, power, of_d)
        spread(best_m, power, of_m)
        store(x, first, of_d, of_m, power, 0, top, q)
        for b in range(min(n * LANES, count - first)):
            d[first + b], m[first + b] = best_d[b], -best_m[b]
    return d, m, q


def affine_super(x: F32, share: F32 | None, top: int, tries: F32, rounds: int) -> tuple[F64, F64, U8, U8, U8]:
    """x = (d * scale) * q - (dmin * low), q <= top, 6-bit scale and low, for blocks (n, 256): d, dmin (n,),
    scale, low (n, 8), q (n, 256).
    """
    count = x.shape[0]
    scale, low = np.empty((count, 8), np.uint8), np.empty((count, 8), np.uint8)
    q, found = np.empty((count, 256), np.uint8), np.empty((2, count))
    tiles, flat = np.empty((2, TILES, 32, LANES), np.float32), np.empty((4, TILES, LANES), np.float32)
    best = np.empty((TILES * LANES // 8, 16), np.float32)
    power, error, d, dmin, best_d, best_dmin = np.empty((6, TILES * LANES // 8))
    for first in range(0, count, TILES * LANES // 8):
        n = min(TILES, -(-(count - first) * 8 // LANES))
        b = n * LANES // 8
        near, units, lows = tiles[0, :n], flat[0, :n], flat[1, :n]
        of_d, of_dmin = flat[2, :n], flat[3, :n]
        load(x, share, first, near, tiles[1, :n], power)
        w = if_any(share, tiles[1, :n])
        scales, bases = affine_groups(near, w, top, False, tries)
        affine_start(scales, bases, power, d, dmin, units, lows)
        for turn in range(rounds + 1):
            spread(d, power, of_d)
            spread(dmin, power, of_dmin)
            if turn < rounds:
                affine_refine(near, w, of_d, of_dmin, units, lows, top)
            sums = affine_fit(near, w, of_d, of_dmin, units, lows, top)
            for k in range(b):
                total = affine_total(sums, k)
                if turn == 0 or not error[k] <= total[0]:
                    error[k], best_d[k], best_dmin[k] = total[0], d[k], dmin[k]
                    for lane in range(k * 8, k * 8 + 8):
                        best[k, lane - k * 8] = units[lane // LANES, lane % LANES]
                        best[k, lane - k * 8 + 8] = lows[lane // LANES, lane % LANES]
                d[k], dmin[k] = affine_solve(d[k], dmin[k], total, power[k])
        spread(best_d, power, of_d)
        spread(best_dmin, power, of_dmin)
        for lane in range(n * LANES):
            of_d[lane // LANES, lane % LANES] *= best[lane // 8, lane % 8]
            of_dmin[lane // LANES, lane % LANES] *= best[lane // 8, lane % 8 + 8]
        store(x, first, of_d, of_dmin, power, 0, top, q)
        for k in range(min(b, count - first)):
            found[0, first + k], found[1, first + k] = best_d[k], best_dmin[k]
            for g in range(8):
                scale[first + k, g], low[first + k, g] = np.uint8(best[k, g]), np.uint8(best[k, 8 + g])
    return found[0], found[1], scale, low, q


def affine_start(scales: F32, bases: F32, power: F64, d: F64, dmin: F64, units: F32, lows: F32) -> None:
    """d and dmin of each block, and the groups' own scales and bases in these units."""
    for k in range(units.size // 8):
        most, lowest = np.float64(0.0), np.float64(0.0)
        for g in range(k * 8, k * 8 + 8):
            most = max(most, np.float64(scales[g // LANES, g % LANES]) * power[k])
            lowest = max(lowest, np.float64(ZERO - bases[g // LANES, g % LANES]) * power[k])
        d[k], dmin[k] = unit(most / 63), unit(lowest / 63)
        for g in range(k * 8, k * 8 + 8):
            s, b = scales[g // LANES, g % LANES], ZERO - bases[g // LANES, g % LANES]
            units[g // LANES, g % LANES] = whole(np.float64(s) * power[k], d[k], 0.0, 63.0)
            lows[g // LANES, g % LANES] = whole(np.float64(b) * power[k], dmin[k], 0.0, 63.0)


def affine_total(sums: F32, k: int) -> tuple[float, float, float, float, float, float]:
    """The sums of affine_fit over the groups of block k."""
    e, a, b, c, d, f = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for g in range(k * 8, k * 8 + 8):
        t, lane = g // LANES, g % LANES
        e += np.float64(sums[0, t, lane])
        a += np.float64(sums[1, t, lane])
        b += np.float64(sums[2, t, lane])
        c += np.float64(sums[3, t, lane])
        d += np.float64(sums[4, t, lane])
        f += np.float64(sums[5, t, lane])
    return e, a, b, c, d, f


def affine_solve(
    d: float, dmin: float, total: tuple[float, float, float, float, float, float], power: float
) -> tuple[float, float]:
    """d and dmin of least squares for the codes that gave a block these sums, see numpy_steps.py."""
    _, sxa, sxb, saa, sab, sbb = total
    determinant = saa * sbb - sab * sab
    if determinant > 0 and determinant > 1e-6 * saa * sbb:
        fit, fit_min = (sbb * sxa - sab * sxb) / determinant, (saa * sxb - sab * sxa) / determinant
        if fit > 0 and fit_min >= 0:
            return half(fit * power), half(fit_min * power)
    if saa > 0 and sbb == 0:
        return half(sxa / saa * power), dmin
    return half(d), dmin
