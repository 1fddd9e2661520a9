"""Searches of the formats with scales alone, each one compiled function from numbers to codes.

The same as numpy_steps.py bit for bit; the steps are those of step_loops.py.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.format import F32
from satchel.quant.jit.simd.vectors import if_any
from satchel.quant.search.block_loops import F64, I8, TILES, U8, half, load, spread, store, unit, whole
from satchel.quant.search.step_loops import LANES, scale_fit, scale_groups, scale_refine


def symmetric(x: F32, share: F32 | None, zero: int, tries: F32) -> tuple[F64, U8]:
    """x = d * (q - zero), q < 2 * zero, for blocks (n, block): d (n,), q (n, block)."""
    count, block = x.shape
    d, q = np.empty(count), np.empty((count, block), np.uint8)
    tiles, flat = np.empty((2, TILES, block, LANES), np.float32), np.zeros((2, TILES, LANES), np.float32)
    best, power = np.empty((2, TILES * LANES))
    for first in range(0, count, TILES * LANES):
        n = min(TILES, -(-(count - first) // LANES))
        near, w, of_d, base = tiles[0, :n], tiles[1, :n], flat[0, :n], flat[1, :n]
        load(x, share, first, near, w, power)
        scales = scale_groups(near, if_any(share, w), -zero, zero - 1, tries)
        for b in range(n * LANES):
            best[b] = half(np.float64(scales[b // LANES, b % LANES]) * power[b])
        spread(best, power, of_d)
        store(x, first, of_d, base, power, -zero, zero - 1, q)
        for b in range(min(n * LANES, count - first)):
            d[first + b] = best[b]
    return d, q


def symmetric_super(x: F32, share: F32 | None, zero: int, tries: F32, rounds: int) -> tuple[F64, I8, U8]:
    """x = (d * scale) * (q - zero), q < 2 * zero, signed 8-bit scale, groups of 16, for blocks (n, 256): d
    (n,), scale (n, 16), q (n, 256).
    """
    count = x.shape[0]
    found, scale, q = np.empty(count), np.empty((count, 16), np.int8), np.empty((count, 256), np.uint8)
    tiles, flat = np.empty((2, TILES, 16, LANES), np.float32), np.zeros((4, TILES, LANES), np.float32)
    blocks = TILES * LANES // 16
    power, error, d, best_d = np.empty((4, blocks))
    for first in range(0, count, blocks):
        n = min(TILES, -(-(count - first) * 16 // LANES))
        b = n * LANES // 16
        near, units, of_d = tiles[0, :n], flat[0, :n], flat[1, :n]
        best, base = flat[2, :n], flat[3, :n]
        load(x, share, first, near, tiles[1, :n], power)
        w = if_any(share, tiles[1, :n])
        symmetric_start(scale_groups(near, w, -zero, zero - 1, tries), power, d, units)
        for turn in range(rounds + 1):
            spread(d, power, of_d)
            if turn < rounds:
                scale_refine(near, w, of_d, units, -zero, zero - 1)
            sums = scale_fit(near, w, of_d, units, -zero, zero - 1)
            for k in range(b):
                t, g = k * 16 // LANES, k * 16 % LANES
                total, sxa, saa = 0.0, 0.0, 0.0
                for lane in range(g, g + 16):
                    total += np.float64(sums[0, t, lane])
                    sxa += np.float64(sums[1, t, lane])
                    saa += np.float64(sums[2, t, lane])
                if turn == 0 or not error[k] <= total:
                    error[k], best_d[k] = total, d[k]
                    for lane in range(g, g + 16):
                        best[t, lane] = units[t, lane]
                d[k] = half(sxa / saa * power[k] if saa > 0 else d[k])
        spread(best_d, power, of_d)
        for lane in range(n * LANES):
            of_d[lane // LANES, lane % LANES] *= best[lane // LANES, lane % LANES]
        store(x, first, of_d, base, power, -zero, zero - 1, q)
        for k in range(min(b, count - first)):
            found[first + k] = best_d[k]
            for g in range(16):
                scale[first + k, g] = np.int8(best[k * 16 // LANES, k * 16 % LANES + g])
    return found, scale, q


def symmetric_start(scales: F32, power: F64, d: F64, units: F32) -> None:
    """d of each block, of the sign of its extreme, and the groups' own scales in these units."""
    for k in range(units.size // 16):
        t, first = k * 16 // LANES, k * 16 % LANES
        extreme = np.float64(scales[t, first])
        for g in range(first, first + 16):
            extreme = np.float64(scales[t, g]) if abs(scales[t, g]) > abs(extreme) else extreme
        d[k] = unit(extreme * power[k] / -128)
        for g in range(first, first + 16):
            units[t, g] = whole(np.float64(scales[t, g]) * power[k], d[k], -128.0, 127.0)
