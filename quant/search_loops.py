"""The search steps as loops, written for numba and plain Python alike; search_numpy.py holds the same in
numpy.

Everything is float32. x and w are [tiles, size, LANES]: each lane of a tile is a group; w weighs squared
errors. Lanes are innermost, so that compilers put each into a lane of a vector. A group's sums run in element
order, so both versions give the same bits. Numbers are expected near 1: squares must neither overflow nor
vanish.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
LANES = 32
ZERO, ONE, TWO, TOP_UNIT, INF = (np.float32(v) for v in (0, 1, 2, 63, np.inf))
LEAST_SIGNED, MOST_SIGNED = np.float32(-128), np.float32(127)


def tile(x: F32, factor: F32, out: F32) -> None:
    """Blocks (n, block), each times its factor (n,), as the groups of `out`, whose last lanes are filled up
    with zeros.
    """
    size = out.shape[1]
    of_block = x.shape[1] // size
    for t in range(out.shape[0]):
        for g in range(LANES):
            group = t * LANES + g
            n = group // of_block
            first = (group - n * of_block) * size
            for i in range(size):
                out[t, i, g] = x[n, first + i] * factor[n] if n < x.shape[0] else ZERO


def scale_groups(x: F32, w: F32, least: float, most: float, tries: F32) -> F32:
    """Best scale s of x = s * q, least <= q <= most, for each group [tiles, LANES]; the extreme element lands
    near each of `tries`.
    """
    scales = np.zeros((x.shape[0], LANES), np.float32)
    low, high = np.float32(least), np.float32(most)
    extreme, inverse, best, best_square, sxq, sqq = np.empty((6, LANES), np.float32)
    for t in range(x.shape[0]):
        for g in range(LANES):
            extreme[g], best[g], best_square[g] = ZERO, ZERO, ONE
        for i in range(x.shape[1]):
            for g in range(LANES):
                v = x[t, i, g]
                extreme[g] = v if abs(v) > abs(extreme[g]) else extreme[g]
        for g in range(LANES):
            scales[t, g] = extreme[g] / low
        for k in range(tries.shape[0]):
            for g in range(LANES):
                inverse[g] = tries[k] / extreme[g] if extreme[g] != ZERO else ZERO
                sxq[g], sqq[g] = ZERO, ZERO
            for i in range(x.shape[1]):
                for g in range(LANES):
                    q = np.rint(inverse[g] * x[t, i, g])
                    q = max(low, q)
                    q = min(high, q)
                    a = w[t, i, g] * q
                    sxq[g] += a * x[t, i, g]
                    sqq[g] += a * q
            for g in range(LANES):
                wins = (sqq[g] > ZERO) & (sxq[g] * sxq[g] * best_square[g] > best[g] * sqq[g])
                best[g] = sxq[g] * sxq[g] if wins else best[g]
                best_square[g] = sqq[g] if wins else best_square[g]
                scales[t, g] = sxq[g] / sqq[g] if wins else scales[t, g]
    return scales


def affine_groups(x: F32, w: F32, top: float, free: bool, tries: F32) -> tuple[F32, F32]:
    """Best scale s and base b of x = s * q + b, 0 <= q <= top, for each group [tiles, LANES]; b <= 0 unless
    free. The range is cut into each of `tries` steps.
    """
    scales, bases = np.zeros((x.shape[0], LANES), np.float32), np.zeros((x.shape[0], LANES), np.float32)
    most = np.float32(top)
    low, span, inverse, best, sw, sx, sxx, sq, sqq, sxq = np.empty((10, LANES), np.float32)
    for t in range(x.shape[0]):
        for g in range(LANES):
            low[g], span[g], best[g] = x[t, 0, g], x[t, 0, g], INF
            sw[g], sx[g], sxx[g] = ZERO, ZERO, ZERO
        for i in range(x.shape[1]):
            for g in range(LANES):
                v, p = x[t, i, g], w[t, i, g] * x[t, i, g]
                low[g] = min(low[g], v)
                span[g] = max(span[g], v)
                sw[g] += w[t, i, g]
                sx[g] += p
                sxx[g] += p * v
        for g in range(LANES):
            low[g] = low[g] if free or low[g] < ZERO else ZERO
            span[g] -= low[g]
            scales[t, g], bases[t, g] = span[g] / most, low[g]
        for k in range(tries.shape[0]):
            for g in range(LANES):
                inverse[g] = tries[k] / span[g] if span[g] != ZERO else ZERO
                sq[g], sqq[g], sxq[g] = ZERO, ZERO, ZERO
            for i in range(x.shape[1]):
                for g in range(LANES):
                    q = np.rint(inverse[g] * (x[t, i, g] - low[g]))
                    q = max(ZERO, q)
                    q = min(most, q)
                    a = w[t, i, g] * q
                    sq[g] += a
                    sqq[g] += a * q
                    sxq[g] += a * x[t, i, g]
            for g in range(LANES):
                determinant = sw[g] * sqq[g] - sq[g] * sq[g]
                s = (sw[g] * sxq[g] - sx[g] * sq[g]) / determinant
                b = (sqq[g] * sx[g] - sq[g] * sxq[g]) / determinant
                bound = (b > ZERO) & (not free)
                s, b = sxq[g] / sqq[g] if bound else s, ZERO if bound else b
                error = (
                    sxx[g]
                    - TWO * s * sxq[g]
                    - TWO * b * sx[g]
                    + s * s * sqq[g]
                    + TWO * s * b * sq[g]
                    + b * b * sw[g]
                )
                wins = (determinant > ZERO) & (s > ZERO) & (error < best[g])
                best[g] = error if wins else best[g]
                scales[t, g] = s if wins else scales[t, g]
                bases[t, g] = b if wins else bases[t, g]
    return scales, bases


def scale_refine(x: F32, w: F32, d: F32, units: F32, least: float, most: float) -> None:
    """Moves each group's unit [tiles, LANES] by at most one to where its nearest codes err least, in place.
    d: of each group.
    """
    low, high = np.float32(least), np.float32(most)
    unit, best, error, step, inverse = np.empty((5, LANES), np.float32)
    for t in range(x.shape[0]):
        for g in range(LANES):
            unit[g], best[g] = units[t, g], INF
        for move in (ZERO, -ONE, ONE):
            for g in range(LANES):
                step[g] = d[t, g] * (unit[g] + move)
                inverse[g] = ONE / step[g] if step[g] != ZERO else ZERO
                error[g] = ZERO
            for i in range(x.shape[1]):
                for g in range(LANES):
                    q = np.rint(inverse[g] * x[t, i, g])
                    q = max(low, q)
                    q = min(high, q)
                    miss = x[t, i, g] - step[g] * q
                    error[g] += w[t, i, g] * miss * miss
            for g in range(LANES):
                u = unit[g] + move
                wins = (u >= LEAST_SIGNED) & (u <= MOST_SIGNED) & (error[g] < best[g])
                best[g] = error[g] if wins else best[g]
                units[t, g] = u if wins else units[t, g]


def scale_fit(x: F32, w: F32, d: F32, units: F32, least: float, most: float, keep: bool) -> tuple[F32, F32]:
    """Nearest codes [tiles, size, LANES], and each group's sums [3, tiles, LANES]: weighted error, and what
    least squares for d needs.
    """
    low, high = np.float32(least), np.float32(most)
    codes, sums = (
        np.empty(x.shape if keep else (1, x.shape[1], LANES), np.float32),
        np.zeros((3, x.shape[0], LANES), np.float32),
    )
    error, sxa, saa, step, inverse = np.empty((5, LANES), np.float32)
    for t in range(x.shape[0]):
        for g in range(LANES):
            step[g] = d[t, g] * units[t, g]
            inverse[g] = ONE / step[g] if step[g] != ZERO else ZERO
            error[g], sxa[g], saa[g] = ZERO, ZERO, ZERO
        for i in range(x.shape[1]):
            for g in range(LANES):
                q = np.rint(inverse[g] * x[t, i, g])
                q = max(low, q)
                q = min(high, q)
                codes[t if keep else 0, i, g] = q
                miss = x[t, i, g] - step[g] * q
                a = units[t, g] * q
                error[g] += w[t, i, g] * miss * miss
                sxa[g] += w[t, i, g] * x[t, i, g] * a
                saa[g] += w[t, i, g] * a * a
        for g in range(LANES):
            sums[0, t, g], sums[1, t, g], sums[2, t, g] = error[g], sxa[g], saa[g]
    return codes, sums


def affine_refine(x: F32, w: F32, d: F32, dmin: F32, units: F32, lows: F32, top: float) -> None:
    """Moves each group's unit and low [tiles, LANES] by at most one to where its nearest codes err least, in
    place.
    """
    most = np.float32(top)
    unit, low, best, error, step, base, inverse = np.empty((7, LANES), np.float32)
    for t in range(x.shape[0]):
        for g in range(LANES):
            unit[g], low[g], best[g] = units[t, g], lows[t, g], INF
        for move in (4, 1, 7, 3, 5, 0, 2, 6, 8):
            right, up = np.float32(move // 3 - 1), np.float32(move % 3 - 1)
            for g in range(LANES):
                step[g], base[g] = d[t, g] * (unit[g] + right), dmin[t, g] * (low[g] + up)
                inverse[g] = ONE / step[g] if step[g] != ZERO else ZERO
                error[g] = ZERO
            for i in range(x.shape[1]):
                for g in range(LANES):
                    v = x[t, i, g] + base[g]
                    q = np.rint(inverse[g] * v)
                    q = max(ZERO, q)
                    q = min(most, q)
                    miss = v - step[g] * q
                    error[g] += w[t, i, g] * miss * miss
            for g in range(LANES):
                u, v = unit[g] + right, low[g] + up
                inside = (u >= ZERO) & (u <= TOP_UNIT) & (v >= ZERO) & (v <= TOP_UNIT)
                wins = inside & (error[g] < best[g])
                best[g] = error[g] if wins else best[g]
                units[t, g] = u if wins else units[t, g]
                lows[t, g] = v if wins else lows[t, g]


def affine_fit(
    x: F32, w: F32, d: F32, dmin: F32, units: F32, lows: F32, top: float, keep: bool
) -> tuple[F32, F32]:
    """Nearest codes [tiles, size, LANES], and each group's sums [6, tiles, LANES]: weighted error, then those
    of least squares for d and dmin: x a, x b, a a, a b, b b.
    """
    most = np.float32(top)
    codes, sums = (
        np.empty(x.shape if keep else (1, x.shape[1], LANES), np.float32),
        np.zeros((6, x.shape[0], LANES), np.float32),
    )
    step, base, inverse, error, sx, sxq, sq, sqq, sw = np.empty((9, LANES), np.float32)
    for t in range(x.shape[0]):
        for g in range(LANES):
            step[g], base[g] = d[t, g] * units[t, g], dmin[t, g] * lows[t, g]
            inverse[g] = ONE / step[g] if step[g] != ZERO else ZERO
            error[g], sx[g], sxq[g], sq[g], sqq[g], sw[g] = ZERO, ZERO, ZERO, ZERO, ZERO, ZERO
        for i in range(x.shape[1]):
            for g in range(LANES):
                v = x[t, i, g] + base[g]
                q = np.rint(inverse[g] * v)
                q = max(ZERO, q)
                q = min(most, q)
                codes[t if keep else 0, i, g] = q
                miss = v - step[g] * q
                p, r = w[t, i, g] * x[t, i, g], w[t, i, g] * q
                error[g] += w[t, i, g] * miss * miss
                sw[g] += w[t, i, g]
                sx[g] += p
                sxq[g] += p * q
                sq[g] += r
                sqq[g] += r * q
        for g in range(LANES):
            u, v = units[t, g], -lows[t, g]
            sums[0, t, g], sums[1, t, g], sums[2, t, g] = error[g], u * sxq[g], v * sx[g]
            sums[3, t, g], sums[4, t, g], sums[5, t, g] = u * u * sqq[g], u * v * sq[g], v * v * sw[g]
    return codes, sums
