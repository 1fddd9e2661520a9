"""The search steps as loops, written for numba and plain Python alike; numpy_steps.py holds the same in
numpy.

Everything is float32. x and w are [tiles, size, LANES]: each lane of a tile is a group; w weighs squared
errors, None where all weigh the same. WIDTH groups at a time are a vector (simd/vectors.py), whose sums stay
in registers from the first number to the last. Sums run in element order, so both give the same bits.
Numbers are expected near 1: squares must neither overflow nor vanish.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from satchel.quant.jit.simd.vectors import (
    WIDTH,
    Vector,
    at_least,
    at_most,
    fetch,
    fused,
    nearest,
    pick,
    put,
    size_of,
    splat,
)

F32 = npt.NDArray[np.float32]
LANES = 32
ZERO, ONE, TWO, TOP_UNIT, INF = (np.float32(v) for v in (0, 1, 2, 63, np.inf))
LEAST_SIGNED, MOST_SIGNED = np.float32(-128), np.float32(127)


def code_of(scaled: Vector, low: Vector, high: Vector) -> Vector:
    """The nearest whole number from low to high."""
    return at_most(high, at_least(low, nearest(scaled)))


def weigh(w: F32 | None, at: int, x: Vector) -> Vector:
    """x times the weights at this place."""
    if w is None:
        return x
    weighed: Vector = fetch(w, at) * x
    return weighed


def add_square(w: F32 | None, a: Vector, q: Vector, total: Vector) -> Vector:
    """total + a * q, for a = w * q: without weights whole numbers, exact however they are summed."""
    if w is None:
        return fused(a, q, total)
    found: Vector = total + a * q
    return found


def inverse_of(step: Vector) -> Vector:
    """1 / step, but 0 for 0."""
    return pick(step != splat(ZERO), splat(ONE) / step, splat(ZERO))


def scale_groups(x: F32, w: F32 | None, least: float, most: float, tries: F32) -> F32:
    """Best scale s of x = s * q, least <= q <= most, for each group [tiles, LANES]; the extreme element lands
    near each of `tries`.
    """
    scales = np.empty((x.shape[0], LANES), np.float32)
    low, high, zero, size = splat(np.float32(least)), splat(np.float32(most)), splat(ZERO), x.shape[1]
    for first in range(0, scales.size, WIDTH):
        start = first // LANES * size * LANES + first % LANES
        extreme = zero
        for at in range(start, start + size * LANES, LANES):
            v = fetch(x, at)
            extreme = pick(size_of(v) > size_of(extreme), v, extreme)
        found, best, best_square = extreme / low, zero, splat(ONE)
        for k in range(tries.shape[0]):
            inverse = pick(extreme != zero, splat(tries[k]) / extreme, zero)
            sxq, sqq = zero, zero
            for at in range(start, start + size * LANES, LANES):
                v = fetch(x, at)
                q = code_of(inverse * v, low, high)
                a = weigh(w, at, q)
                sxq = sxq + a * v
                sqq = add_square(w, a, q, sqq)
            wins = (sqq > zero) & (sxq * sxq * best_square > best * sqq)
            best = pick(wins, sxq * sxq, best)
            best_square = pick(wins, sqq, best_square)
            found = pick(wins, sxq / sqq, found)
        put(scales, first, found)
    return scales


def affine_range(x: F32, start: int, free: bool) -> tuple[Vector, Vector]:
    """Least number of each group, at most 0 unless free, and the distance to its largest."""
    low, high, zero = fetch(x, start), fetch(x, start), splat(ZERO)
    for at in range(start + LANES, start + x.shape[1] * LANES, LANES):
        v = fetch(x, at)
        low, high = at_most(low, v), at_least(high, v)
    # Zeros get one sign, which no order of comparing changes.
    low = low + zero if free else pick(low < zero, low, zero)
    return low, high - low + zero


def affine_groups(x: F32, w: F32 | None, top: float, free: bool, tries: F32) -> tuple[F32, F32]:
    """Best scale s and base b of x = s * q + b, 0 <= q <= top, for each group [tiles, LANES]; b <= 0 unless
    free. The range is cut into each of `tries` steps.
    """
    scales, bases = np.empty((x.shape[0], LANES), np.float32), np.empty((x.shape[0], LANES), np.float32)
    most, zero, two, size = splat(np.float32(top)), splat(ZERO), splat(TWO), x.shape[1]
    for first in range(0, scales.size, WIDTH):
        start = first // LANES * size * LANES + first % LANES
        low, span = affine_range(x, start, free)
        sw, sx, sxx = zero, zero, zero
        for at in range(start, start + size * LANES, LANES):
            v = fetch(x, at)
            p = weigh(w, at, v)
            sw, sx, sxx = sw + weigh(w, at, splat(ONE)), sx + p, sxx + p * v
        best, scale, base = splat(INF), span / most, low
        for k in range(tries.shape[0]):
            inverse = pick(span != zero, splat(tries[k]) / span, zero)
            sq, sqq, sxq = zero, zero, zero
            for at in range(start, start + size * LANES, LANES):
                v = fetch(x, at)
                q = code_of(inverse * (v - low), zero, most)
                a = weigh(w, at, q)
                sq, sqq, sxq = sq + a, add_square(w, a, q, sqq), sxq + a * v
            determinant = sw * sqq - sq * sq
            s, b = (sw * sxq - sx * sq) / determinant, (sqq * sx - sq * sxq) / determinant
            if not free:
                s, b = pick(b > zero, sxq / sqq, s), pick(b > zero, zero, b)
            error = sxx - two * s * sxq - two * b * sx + s * s * sqq + two * s * b * sq + b * b * sw
            wins = (determinant > zero) & (s > zero) & (error < best)
            best, scale, base = pick(wins, error, best), pick(wins, s, scale), pick(wins, b, base)
        put(scales, first, scale)
        put(bases, first, base)
    return scales, bases


def scale_refine(x: F32, w: F32 | None, d: F32, units: F32, least: float, most: float) -> None:
    """Moves each group's unit [tiles, LANES] by at most one to where its nearest codes err least, in place.
    d: of each group.
    """
    low, high, size = splat(np.float32(least)), splat(np.float32(most)), x.shape[1]
    for first in range(0, units.size, WIDTH):
        start = first // LANES * size * LANES + first % LANES
        unit = fetch(units, first)
        found, best = unit, splat(INF)
        for move in (ZERO, -ONE, ONE):
            u = unit + splat(move)
            step = fetch(d, first) * u
            inverse, error = inverse_of(step), splat(ZERO)
            for at in range(start, start + size * LANES, LANES):
                v = fetch(x, at)
                miss = v - step * code_of(inverse * v, low, high)
                error = error + weigh(w, at, miss) * miss
            wins = (u >= splat(LEAST_SIGNED)) & (u <= splat(MOST_SIGNED)) & (error < best)
            best, found = pick(wins, error, best), pick(wins, u, found)
        put(units, first, found)


def scale_fit(x: F32, w: F32 | None, d: F32, units: F32, least: float, most: float) -> F32:
    """Each group's sums [3, tiles, LANES] under its nearest codes: weighted error, and what least squares for
    d needs.
    """
    sums, zero = np.empty((3, x.shape[0], LANES), np.float32), splat(ZERO)
    low, high, size, count = splat(np.float32(least)), splat(np.float32(most)), x.shape[1], units.size
    for first in range(0, count, WIDTH):
        start = first // LANES * size * LANES + first % LANES
        unit = fetch(units, first)
        step = fetch(d, first) * unit
        inverse = inverse_of(step)
        error, sxa, saa = zero, zero, zero
        for at in range(start, start + size * LANES, LANES):
            v = fetch(x, at)
            q = code_of(inverse * v, low, high)
            miss, a = v - step * q, unit * q
            error = error + weigh(w, at, miss) * miss
            sxa = sxa + weigh(w, at, v) * a
            saa = saa + weigh(w, at, a) * a
        put(sums, first, error)
        put(sums, count + first, sxa)
        put(sums, 2 * count + first, saa)
    return sums


def affine_refine(x: F32, w: F32 | None, d: F32, dmin: F32, units: F32, lows: F32, top: float) -> None:
    """Moves each group's unit and low [tiles, LANES] by at most one to where its nearest codes err least, in
    place.
    """
    most, zero, top_unit, size = splat(np.float32(top)), splat(ZERO), splat(TOP_UNIT), x.shape[1]
    for first in range(0, units.size, WIDTH):
        start = first // LANES * size * LANES + first % LANES
        unit, low = fetch(units, first), fetch(lows, first)
        unit_found, low_found, best = unit, low, splat(INF)
        for move in (4, 1, 7, 3, 5, 0, 2, 6, 8):
            right, up = unit + splat(np.float32(move // 3 - 1)), low + splat(np.float32(move % 3 - 1))
            step, base = fetch(d, first) * right, fetch(dmin, first) * up
            inverse, error = inverse_of(step), zero
            for at in range(start, start + size * LANES, LANES):
                v = fetch(x, at) + base
                miss = v - step * code_of(inverse * v, zero, most)
                error = error + weigh(w, at, miss) * miss
            inside = (right >= zero) & (right <= top_unit) & (up >= zero) & (up <= top_unit)
            wins = inside & (error < best)
            best = pick(wins, error, best)
            unit_found, low_found = pick(wins, right, unit_found), pick(wins, up, low_found)
        put(units, first, unit_found)
        put(lows, first, low_found)


def affine_fit(x: F32, w: F32 | None, d: F32, dmin: F32, units: F32, lows: F32, top: float) -> F32:
    """Each group's sums [6, tiles, LANES] under its nearest codes: weighted error, then those of least
    squares for d and dmin: x a, x b, a a, a b, b b.
    """
    sums, zero, count = np.empty((6, x.shape[0], LANES), np.float32), splat(ZERO), units.size
    most, size = splat(np.float32(top)), x.shape[1]
    for first in range(0, count, WIDTH):
        start = first // LANES * size * LANES + first % LANES
        u, low = fetch(units, first), zero - fetch(lows, first)
        step, base = fetch(d, first) * u, fetch(dmin, first) * fetch(lows, first)
        inverse = inverse_of(step)
        error, sx, sxq, sq, sqq, sw = zero, zero, zero, zero, zero, zero
        for at in range(start, start + size * LANES, LANES):
            v = fetch(x, at) + base
            q = code_of(inverse * v, zero, most)
            miss, p, r = v - step * q, weigh(w, at, fetch(x, at)), weigh(w, at, q)
            error = error + weigh(w, at, miss) * miss
            sw, sx, sxq = sw + weigh(w, at, splat(ONE)), sx + p, sxq + p * q
            sq, sqq = sq + r, add_square(w, r, q, sqq)
        put(sums, first, error)
        put(sums, count + first, u * sxq)
        put(sums, 2 * count + first, low * sx)
        put(sums, 3 * count + first, u * u * sqq)
        put(sums, 4 * count + first, u * low * sq)
        put(sums, 5 * count + first, low * low * sw)
    return sums
