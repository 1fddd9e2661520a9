"""Scale searches of the two- and three-bit K-quants, where each group's few scales are all tried.

As in least_squares.py, scales and codes are improved in turn. With so few bits the best unit of a group is
often not the one nearest to its best free scale, so every unit (and every low) is tried, not only the
neighbours.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.format import F32
from satchel.quant.jit.compiled import compiled
from satchel.quant.pack import quietly, rows
from satchel.quant.search import low_loops
from satchel.quant.search.lanes import lanes
from satchel.quant.search.least_squares import MANY, Affine, Symmetric, as_f16
from satchel.quant.search.numpy_steps import nearest_codes, solve
from satchel.quant.search.scales import F64, better, half, shares, unit, whole
from satchel.quant.search.steps import step

ROUNDS = 3  # of units and d in turn; more rounds, or more starts, lower the error by less than 1 %
EVERY, NEAR = 15, 2  # how far lows are looked for: in the first round everywhere, then near the last ones


@quietly
def affine_low(x: F32, importance: F32 | None) -> Affine:
    """x = (d * scale) * q - (dmin * low), q < 4, in groups of 16; scale and low (..., 16) below 16 (q2_k)."""
    blocks = rows(x, 256)
    a, lead = lanes(blocks.reshape(-1, 256), shares(importance, 256), 16), blocks.shape[:-1]
    found = step("affine_groups")(a.x, a.w, 3, False, np.float32(3) + MANY)
    scale, low = a.blocks(found[0]) * a.power[:, None], -a.blocks(found[1]) * a.power[:, None]
    d, dmin = unit(scale.max(axis=1) / 15), unit(low.max(axis=1) / 15)
    units, lows = (a.spread(whole(s, part, 0, 15)) for s, part in ((scale, d), (low, dmin)))
    best: tuple[F64, ...] = ()
    for turn in range(ROUNDS + 1):
        of_lane = a.each(d), a.each(dmin)
        if turn < ROUNDS:
            compiled(low_loops.affine_units)(a.x, a.w, *of_lane, units, lows, NEAR if turn else EVERY)
        sums = step("affine_fit")(a.x, a.w, *of_lane, units, lows, 3)
        error, least = a.totals(sums)
        best = better(best, (error, d, dmin, a.blocks(units), a.blocks(lows)))
        d, dmin = solve(d, dmin, least, a.power)
    _, d, dmin, of_scale, of_low = best
    q = nearest_codes(a, a.each(d) * a.spread(of_scale), a.each(dmin) * a.spread(of_low), 0, 3)
    units_8, lows_8 = (part.astype(np.uint8).reshape(*lead, 16) for part in (of_scale, of_low))
    return Affine(as_f16(d, lead), as_f16(dmin, lead), units_8, lows_8, q.reshape(blocks.shape))


@quietly
def symmetric_low(x: F32, importance: F32 | None) -> Symmetric:
    """x = (d * scale) * (q - 4), q < 8, in groups of 16; scale (..., 16) from -32 to 31 (q3_k)."""
    blocks = rows(x, 256)
    a, lead = lanes(blocks.reshape(-1, 256), shares(importance, 256), 16), blocks.shape[:-1]
    scale = a.blocks(step("scale_groups")(a.x, a.w, -4, 3, np.float32(-4) + MANY)) * a.power[:, None]
    extreme = np.take_along_axis(scale, np.abs(scale).argmax(axis=1)[:, None], axis=1)[:, 0]
    d, units = unit(extreme / -32), a.spread(np.zeros(scale.shape))
    best: tuple[F64, ...] = ()
    for turn in range(ROUNDS + 1):
        if turn < ROUNDS:
            compiled(low_loops.symmetric_units)(a.x, a.w, a.each(d), units)
        sums = step("scale_fit")(a.x, a.w, a.each(d), units, -4, 3)
        error, (sxa, saa) = a.totals(sums)
        best = better(best, (error, d, a.blocks(units)))
        d = half(np.where(saa > 0, sxa / np.where(saa > 0, saa, 1.0) * a.power, d))
    _, d, of_scale = best
    steps = a.each(d) * a.spread(of_scale)
    q = nearest_codes(a, steps, np.zeros_like(steps), -4, 3)
    small = of_scale.astype(np.int8).reshape(*lead, 16)
    return Symmetric(as_f16(d, lead), small, q.reshape(blocks.shape))
