"""The steps of steps.py as loops for numba, with the same bits. x and w are [tiles, size, WIDE]: each lane of
a tile is a group. The innermost loops run over lanes, so that they become vector code, and each lane's sums
run in element order. The caller allocates the outputs.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.format import F32
from satchel.quant.search.lanes import WIDE

ZERO, ONE, TWO, INF = (np.float32(v) for v in (0, 1, 2, np.inf))


def scale_groups(x: F32, w: F32, least: float, most: float, tries: F32, scales: F32) -> None:
    extreme, best, best_square, inverse, sxq, sqq = np.empty((6, WIDE), np.float32)
    low, high = np.float32(least), np.float32(most)
    for t in range(x.shape[0]):
        for g in range(WIDE):
            extreme[g], best[g], best_square[g] = ZERO, ZERO, ONE
        for i in range(x.shape[1]):
            for g in range(WIDE):
                extreme[g] = x[t, i, g] if abs(x[t, i, g]) > abs(extreme[g]) else extreme[g]
        for g in range(WIDE):
            scales[t, g] = extreme[g] / low
        for k in range(tries.shape[0]):
            for g in range(WIDE):
                inverse[g] = tries[k] / extreme[g] if extreme[g] != ZERO else ZERO
                sxq[g], sqq[g] = ZERO, ZERO
            for i in range(x.shape[1]):
                for g in range(WIDE):
                    q = min(max(np.rint(inverse[g] * x[t, i, g]), low), high)
                    a = w[t, i, g] * q
                    sxq[g] += a * x[t, i, g]
                    sqq[g] += a * q
            for g in range(WIDE):
                if sqq[g] > ZERO and sxq[g] * sxq[g] * best_square[g] > best[g] * sqq[g]:
                    best[g], best_square[g] = sxq[g] * sxq[g], sqq[g]
                    scales[t, g] = sxq[g] / sqq[g]


def affine_groups(x: F32, w: F32, top: float, free: bool, tries: F32, scales: F32, bases: F32) -> None:
    low, span, sw, sx, sxx, best, inverse, sq, sqq, sxq = np.empty((10, WIDE), np.float32)
    most = np.float32(top)
    for t in range(x.shape[0]):
        for g in range(WIDE):
            low[g], span[g], best[g] = x[t, 0, g], x[t, 0, g], INF
            sw[g], sx[g], sxx[g] = ZERO, ZERO, ZERO
        for i in range(x.shape[1]):
            for g in range(WIDE):
                v, p = x[t, i, g], w[t, i, g] * x[t, i, g]
                low[g], span[g] = min(v, low[g]), max(v, span[g])
                sw[g] += w[t, i, g]
                sx[g] += p
                sxx[g] += p * v
        for g in range(WIDE):
            low[g] = low[g] + ZERO if free or low[g] < ZERO else ZERO
            span[g] = span[g] - low[g] + ZERO
            scales[t, g], bases[t, g] = span[g] / most, low[g]
        for k in range(tries.shape[0]):
            for g in range(WIDE):
                inverse[g] = tries[k] / span[g] if span[g] != ZERO else ZERO
                sq[g], sqq[g], sxq[g] = ZERO, ZERO, ZERO
            for i in range(x.shape[1]):
                for g in range(WIDE):
                    q = min(max(np.rint(inverse[g] * (x[t, i, g] - low[g])), ZERO), most)
                    a = w[t, i, g] * q
                    sq[g] += a
                    sqq[g] += a * q
                    sxq[g] += a * x[t, i, g]
            for g in range(WIDE):
                determinant = sw[g] * sqq[g] - sq[g] * sq[g]
                s = (sw[g] * sxq[g] - sx[g] * sq[g]) / determinant
                b = (sqq[g] * sx[g] - sq[g] * sxq[g]) / determinant
                if b > ZERO and not free:
                    s, b = sxq[g] / sqq[g], ZERO
                error = sxx[g] - TWO * s * sxq[g] - TWO * b * sx[g] + s * s * sqq[g]
                error = error + TWO * s * b * sq[g] + b * b * sw[g]
                if determinant > ZERO and s > ZERO and error < best[g]:
                    best[g], scales[t, g], bases[t, g] = error, s, b


def scale_refine(x: F32, w: F32, d: F32, units: F32, least: float, most: float) -> None:
    best, error, unit, start = np.empty((4, WIDE), np.float32)
    low, high = np.float32(least), np.float32(most)
    for t in range(x.shape[0]):
        for g in range(WIDE):
            best[g], start[g] = INF, units[t, g]
        for move in (0, -1, 1):
            for g in range(WIDE):
                unit[g], error[g] = start[g] + np.float32(move), ZERO
            for i in range(x.shape[1]):
                for g in range(WIDE):
                    step = d[t, g] * unit[g]
                    inverse = ONE / step if step != ZERO else ZERO
                    miss = x[t, i, g] - step * min(max(np.rint(inverse * x[t, i, g]), low), high)
                    error[g] += w[t, i, g] * miss * miss
            for g in range(WIDE):
                if unit[g] >= np.float32(-128) and unit[g] <= np.float32(127) and error[g] < best[g]:
                    best[g], units[t, g] = error[g], unit[g]


def scale_fit(x: F32, w: F32, d: F32, units: F32, least: float, most: float, sums: F32) -> None:
    low, high = np.float32(least), np.float32(most)
    sums[:] = ZERO
    for t in range(x.shape[0]):
        for i in range(x.shape[1]):
            for g in range(WIDE):
                step = d[t, g] * units[t, g]
                inverse = ONE / step if step != ZERO else ZERO
                v = x[t, i, g]
                q = min(max(np.rint(inverse * v), low), high)
                miss, a = v - step * q, units[t, g] * q
                sums[0, t, g] += w[t, i, g] * miss * miss
                sums[1, t, g] += w[t, i, g] * v * a
                sums[2, t, g] += w[t, i, g] * a * a


def affine_refine(x: F32, w: F32, d: F32, dmin: F32, units: F32, lows: F32, top: float) -> None:
    best, error, unit, low, first, second = np.empty((6, WIDE), np.float32)
    most, last = np.float32(top), np.float32(63)
    for t in range(x.shape[0]):
        for g in range(WIDE):
            best[g], first[g], second[g] = INF, units[t, g], lows[t, g]
        for move in (4, 1, 7, 3, 5, 0, 2, 6, 8):
            for g in range(WIDE):
                unit[g], low[g] = first[g] + np.float32(move // 3 - 1), second[g] + np.float32(move % 3 - 1)
                error[g] = ZERO
            for i in range(x.shape[1]):
                for g in range(WIDE):
                    step, v = d[t, g] * unit[g], x[t, i, g] + dmin[t, g] * low[g]
                    inverse = ONE / step if step != ZERO else ZERO
                    miss = v - step * min(max(np.rint(inverse * v), ZERO), most)
                    error[g] += w[t, i, g] * miss * miss
            for g in range(WIDE):
                inside = unit[g] >= ZERO and unit[g] <= last and low[g] >= ZERO and low[g] <= last
                if inside and error[g] < best[g]:
                    best[g], units[t, g], lows[t, g] = error[g], unit[g], low[g]


def affine_fit(x: F32, w: F32, d: F32, dmin: F32, units: F32, lows: F32, top: float, sums: F32) -> None:
    most = np.float32(top)
    sums[:] = ZERO
    for t in range(x.shape[0]):
        for i in range(x.shape[1]):
            for g in range(WIDE):
                step, v = d[t, g] * units[t, g], x[t, i, g] + dmin[t, g] * lows[t, g]
                inverse = ONE / step if step != ZERO else ZERO
                q = min(max(np.rint(inverse * v), ZERO), most)
                miss, p, r = v - step * q, w[t, i, g] * x[t, i, g], w[t, i, g] * q
                sums[0, t, g] += w[t, i, g] * miss * miss
                sums[1, t, g] += p * q
                sums[2, t, g] += p
                sums[3, t, g] += r * q
                sums[4, t, g] += r
                sums[5, t, g] += w[t, i, g]
        for g in range(WIDE):
            u, low = units[t, g], ZERO - lows[t, g]
            sums[1, t, g] = u * sums[1, t, g]
            sums[2, t, g] = low * sums[2, t, g]
            sums[3, t, g] = u * u * sums[3, t, g]
            sums[4, t, g] = u * low * sums[4, t, g]
            sums[5, t, g] = low * low * sums[5, t, g]


def scale_units(x: F32, w: F32, d: F32, units: F32) -> None:
    best, error, step, inverse = np.empty((4, WIDE), np.float32)
    low, high = np.float32(-4), np.float32(3)
    for t in range(x.shape[0]):
        for g in range(WIDE):
            best[g] = INF
        for unit in range(-32, 32):
            u = np.float32(unit)
            for g in range(WIDE):
                step[g] = d[t, g] * u
                inverse[g] = ONE / step[g] if step[g] != ZERO else ZERO
                error[g] = ZERO
            for i in range(x.shape[1]):
                for g in range(WIDE):
                    q = min(max(np.rint(inverse[g] * x[t, i, g]), low), high)
                    miss = x[t, i, g] - step[g] * q
                    error[g] += w[t, i, g] * miss * miss
            for g in range(WIDE):
                wins = error[g] < best[g]
                best[g] = error[g] if wins else best[g]
                units[t, g] = u if wins else units[t, g]


def affine_units(x: F32, w: F32, d: F32, dmin: F32, units: F32, lows: F32, reach: int) -> None:
    best, error, step, inverse, middle, low = np.empty((6, WIDE), np.float32)
    top, last = np.float32(3), np.float32(15)
    for t in range(x.shape[0]):
        for g in range(WIDE):
            best[g], middle[g] = INF, lows[t, g]
        for k in range(min(2 * reach, 15) + 1):
            for g in range(WIDE):
                low[g] = np.float32(k) if reach == 15 else middle[g] + np.float32(k - reach)
            for unit in range(16):
                u = np.float32(unit)
                for g in range(WIDE):
                    step[g] = d[t, g] * u
                    inverse[g] = ONE / step[g] if step[g] != ZERO else ZERO
                    error[g] = ZERO
                for i in range(x.shape[1]):
                    for g in range(WIDE):
                        v = x[t, i, g] + dmin[t, g] * low[g]
                        q = min(max(np.rint(inverse[g] * v), ZERO), top)
                        miss = v - step[g] * q
                        error[g] += w[t, i, g] * miss * miss
                for g in range(WIDE):
                    wins = (low[g] >= ZERO) & (low[g] <= last) & (error[g] < best[g])
                    best[g] = error[g] if wins else best[g]
                    units[t, g] = u if wins else units[t, g]
                    lows[t, g] = low[g] if wins else lows[t, g]
