"""The exhaustive unit searches of low.py as loops for numba, laid out as in step_loops.py: [tiles,
size, LANES], all float32.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.format import F32
from satchel.quant.search.step_loops import INF, LANES, ONE, ZERO

THREE, LEAST, LAST = np.float32(3), np.float32(-4), np.float32(15)


def symmetric_units(x: F32, w: F32, d: F32, units: F32) -> None:
    """The unit in -32..31 of each group whose nearest codes in -4..3 err least, into units [tiles, LANES]."""
    best, error, step, inverse = np.empty((4, LANES), np.float32)
    for t in range(x.shape[0]):
        for g in range(LANES):
            best[g] = INF
        for unit in range(-32, 32):
            u = np.float32(unit)
            for g in range(LANES):
                step[g] = d[t, g] * u
                inverse[g] = ONE / step[g] if step[g] != ZERO else ZERO
                error[g] = ZERO
            for i in range(x.shape[1]):
                for g in range(LANES):
                    q = np.rint(inverse[g] * x[t, i, g])
                    q = max(LEAST, q)
                    q = min(THREE, q)
                    miss = x[t, i, g] - step[g] * q
                    error[g] += w[t, i, g] * miss * miss
            for g in range(LANES):
                wins = error[g] < best[g]
                best[g] = error[g] if wins else best[g]
                units[t, g] = u if wins else units[t, g]


def affine_units(x: F32, w: F32, d: F32, dmin: F32, units: F32, lows: F32, reach: int) -> None:
    """For each group the unit and the low in 0..15 whose nearest codes in 0..3 err least, lows no further
    than `reach` from those given; in place.
    """
    best, error, step, inverse, middle, low = np.empty((6, LANES), np.float32)
    for t in range(x.shape[0]):
        for g in range(LANES):
            best[g], middle[g] = INF, lows[t, g]
        for k in range(min(2 * reach, 15) + 1):
            for g in range(LANES):
                low[g] = np.float32(k) if reach == 15 else middle[g] + np.float32(k - reach)
            for unit in range(16):
                u = np.float32(unit)
                for g in range(LANES):
                    step[g] = d[t, g] * u
                    inverse[g] = ONE / step[g] if step[g] != ZERO else ZERO
                    error[g] = ZERO
                for i in range(x.shape[1]):
                    for g in range(LANES):
                        v = x[t, i, g] + dmin[t, g] * low[g]
                        q = np.rint(inverse[g] * v)
                        q = max(ZERO, q)
                        q = min(THREE, q)
                        miss = v - step[g] * q
                        error[g] += w[t, i, g] * miss * miss
                for g in range(LANES):
                    wins = (low[g] >= ZERO) & (low[g] <= LAST) & (error[g] < best[g])
                    best[g] = error[g] if wins else best[g]
                    units[t, g] = u if wins else units[t, g]
                    lows[t, g] = low[g] if wins else lows[t, g]
