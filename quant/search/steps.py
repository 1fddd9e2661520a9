"""The steps of the scale searches: what each gives, in numpy. C and step_loops.py compute the same bits.

Everything is float32. x and w are [tiles, size, WIDE]: each lane of a tile is a group; w weighs squared
errors. Numbers are expected near 1: squares must neither overflow nor vanish. Sums run in element order, by
cumsum, for numpy's own sums are pairwise. Results go into arrays of the caller.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from satchel.quant.format import F32
from satchel.quant.search.step_loops import INF, ONE, TWO, ZERO


def _sum(terms: npt.NDArray[np.floating]) -> F32:
    """[tiles, size, lanes] in order over size, from zero."""
    total: F32 = np.cumsum(terms, axis=1, dtype=np.float32)[:, -1] + ZERO
    return total


def _inverse(step: F32, one: F32 | np.float32 = ONE) -> F32:
    """one / step, but 0 for 0."""
    found: F32 = np.where(step != 0, one / np.where(step != 0, step, ONE), ZERO)
    return found


def nearest(scaled: F32, least: float, most: float) -> F32:
    """The nearest whole numbers from least to most; a NaN stays."""
    clipped: F32 = np.clip(np.rint(scaled), np.float32(least), np.float32(most))
    return clipped


def nearest_codes(x: F32, step: F32, base: F32, least: float, most: float) -> F32:
    """The nearest codes of x under each group's step and base [tiles, WIDE]."""
    return nearest(_inverse(step)[:, None] * (x + base[:, None]), least, most)


def scale_groups(x: F32, w: F32, least: float, most: float, tries: F32, scales: F32) -> None:
    """Best scale s of x = s * q, least <= q <= most, for each group [tiles, WIDE]; the extreme element lands
    near each of `tries`.
    """
    extreme = np.zeros_like(scales)
    for i in range(x.shape[1]):
        extreme = np.where(np.abs(x[:, i]) > np.abs(extreme), x[:, i], extreme)  # skips a NaN
    scales[...] = extreme / np.float32(least)
    best, best_square = np.zeros_like(extreme), np.ones_like(extreme)
    for steps in tries:
        q = nearest(_inverse(extreme, steps)[:, None] * x, least, most)
        sxq, sqq = _sum(w * q * x), _sum(w * q * q)
        wins = (sqq > 0) & (sxq * sxq * best_square > best * sqq)
        best, best_square = np.where(wins, sxq * sxq, best), np.where(wins, sqq, best_square)
        scales[...] = np.where(wins, sxq / np.where(wins, sqq, ONE), scales)


def affine_range(x: F32, free: bool) -> tuple[F32, F32]:
    """Least number of each group, at most 0 unless free, and the distance to its largest. A NaN forgets the
    numbers before it.
    """
    low, high = x[:, 0], x[:, 0]
    for i in range(1, x.shape[1]):
        low, high = np.where(low < x[:, i], low, x[:, i]), np.where(high > x[:, i], high, x[:, i])
    # Zeros get one sign, which no order of comparing changes.
    low = low + ZERO if free else np.where(low < 0, low, ZERO)
    return low, high - low + ZERO


def affine_groups(x: F32, w: F32, top: float, free: bool, tries: F32, scales: F32, bases: F32) -> None:
    """Best scale s and base b of x = s * q + b, 0 <= q <= top, for each group [tiles, WIDE]; b <= 0 unless
    free. The range is cut into each of `tries` steps.
    """
    low, span = affine_range(x, free)
    sw, sx, sxx = _sum(w), _sum(w * x), _sum(w * x * x)
    scales[...], bases[...], best = span / np.float32(top), low, np.full(low.shape, INF)
    for steps in tries:
        q = nearest(_inverse(span, steps)[:, None] * (x - low[:, None]), 0, top)
        sq, sqq, sxq = _sum(w * q), _sum(w * q * q), _sum(w * q * x)
        determinant = sw * sqq - sq * sq
        usable = determinant > 0
        safe_det, safe_sqq = np.where(usable, determinant, ONE), np.where(usable, sqq, ONE)
        s, b = (sw * sxq - sx * sq) / safe_det, (sqq * sx - sq * sxq) / safe_det
        bound = (b > 0) & (not free)
        s, b = np.where(bound, sxq / safe_sqq, s), np.where(bound, ZERO, b)
        error = sxx - TWO * s * sxq - TWO * b * sx + s * s * sqq + TWO * s * b * sq + b * b * sw
        wins = usable & (s > 0) & (error < best)
        best = np.where(wins, error, best)
        scales[...], bases[...] = np.where(wins, s, scales), np.where(wins, b, bases)


def _scale_error(x: F32, w: F32, step: F32, least: float, most: float) -> F32:
    """Weighted error of each group under the nearest codes."""
    miss = x - step[:, None] * nearest_codes(x, step, np.zeros_like(step), least, most)
    return _sum(w * miss * miss)


def _affine_error(x: F32, w: F32, step: F32, base: F32, top: float) -> F32:
    return _scale_error(x + base[:, None], w, step, 0, top)


def scale_refine(x: F32, w: F32, d: F32, units: F32, least: float, most: float) -> None:
    """Moves each group's unit [tiles, WIDE] by at most one to where its nearest codes err least, in place.
    d: of each group.
    """
    start, best = units.copy(), np.full(units.shape, INF)
    for move in (ZERO, -ONE, ONE):
        unit = start + move
        error = _scale_error(x, w, d * unit, least, most)
        wins = (unit >= -128) & (unit <= 127) & (error < best)
        best = np.where(wins, error, best)
        units[...] = np.where(wins, unit, units)


def scale_fit(x: F32, w: F32, d: F32, units: F32, least: float, most: float, sums: F32) -> None:
    """Each group's sums [3, tiles, WIDE] under its nearest codes: weighted error, and what least squares for
    d needs.
    """
    step = d * units
    q = nearest_codes(x, step, np.zeros_like(step), least, most)
    a, miss = units[:, None] * q, x - step[:, None] * q
    sums[...] = np.stack([_sum(w * miss * miss), _sum(w * x * a), _sum(w * a * a)])


def affine_refine(x: F32, w: F32, d: F32, dmin: F32, units: F32, lows: F32, top: float) -> None:
    """Moves each group's unit and low [tiles, WIDE] by at most one to where its nearest codes err least, in
    place.
    """
    unit0, low0, best = units.copy(), lows.copy(), np.full(units.shape, INF)
    for move in (4, 1, 7, 3, 5, 0, 2, 6, 8):
        unit, low = unit0 + np.float32(move // 3 - 1), low0 + np.float32(move % 3 - 1)
        error = _affine_error(x, w, d * unit, dmin * low, top)
        inside = (unit >= 0) & (unit <= 63) & (low >= 0) & (low <= 63)
        wins = inside & (error < best)
        best = np.where(wins, error, best)
        units[...], lows[...] = np.where(wins, unit, units), np.where(wins, low, lows)


def affine_fit(x: F32, w: F32, d: F32, dmin: F32, units: F32, lows: F32, top: float, sums: F32) -> None:
    """Each group's sums [6, tiles, WIDE] under its nearest codes: weighted error, then those of least squares
    for d and dmin: x a, x b, a a, a b, b b.
    """
    step, base = d * units, dmin * lows
    q = nearest_codes(x, step, base, 0, top)
    miss, p, r = x + base[:, None] - step[:, None] * q, w * x, w * q
    error, sw, sx, sxq, sq, sqq = map(_sum, (w * miss * miss, w, p, p * q, r, r * q))
    u, low = units, ZERO - lows
    sums[...] = np.stack([error, u * sxq, low * sx, u * u * sqq, u * low * sq, low * low * sw])


def scale_units(x: F32, w: F32, d: F32, units: F32) -> None:
    """The unit in -32..31 of each group whose nearest codes in -4..3 err least, into units [tiles, WIDE]."""
    best = np.full(units.shape, INF)
    for unit in range(-32, 32):
        error = _scale_error(x, w, d * np.float32(unit), -4, 3)
        wins = error < best
        best = np.where(wins, error, best)
        units[...] = np.where(wins, np.float32(unit), units)


def affine_units(x: F32, w: F32, d: F32, dmin: F32, units: F32, lows: F32, reach: int) -> None:
    """For each group the unit and the low in 0..15 whose nearest codes in 0..3 err least, lows no further
    than `reach` from those given; in place.
    """
    middle, best = lows.copy(), np.full(units.shape, INF)
    for k in range(min(2 * reach, 15) + 1):
        low = np.full_like(middle, k) if reach == 15 else middle + np.float32(k - reach)
        for unit in range(16):
            error = _affine_error(x, w, d * np.float32(unit), dmin * low, 3)
            wins = (low >= 0) & (low <= 15) & (error < best)
            best = np.where(wins, error, best)
            units[...], lows[...] = np.where(wins, np.float32(unit), units), np.where(wins, low, lows)
