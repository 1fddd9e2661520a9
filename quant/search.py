"""Scale searches of the weight encoders: least weighted squared error between a row and its blocks' decoded
values.

Each search is a few steps of search_loops.py, compiled by numba where it can be imported, else the same steps
in numpy (search_numpy.py, far slower); both give the same bits. The only scales ever tried are ones that the
format can store. Method: for each group try a few scales, solve least squares for each set of codes (as in
the K-quants of ggml), then quantize the scales, and improve scales and codes in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from satchel.quant.format import F32
from satchel.quant.lanes import lanes
from satchel.quant.pack import F16, U8, quietly, to_f16
from satchel.quant.scales import F64, better, half, unit, whole
from satchel.quant.steps import step

ROUNDS = 2  # of improving scales and codes in turn; a third changes the error by less than 0.2 %
# Steps that a group's range is cut into, or its extreme lies from zero, more or fewer than its codes have.
# Under equal weights few of them are as good as many (within 0.2 %), under unequal ones they are not (4 %).
FEW = np.linspace(-1.0, 1.0, 9, dtype=np.float32)
MANY = np.linspace(-1.2, 1.2, 25, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Affine:
    """Blocks of eight groups of 32: d, dmin (...); scale, low (..., 8) below 64; q (..., 256)."""

    d: F16
    dmin: F16
    scale: U8
    low: U8
    q: U8


@dataclass(frozen=True, slots=True)
class Symmetric:
    """Blocks of sixteen groups of 16: d (...); scale (..., 16) signed; q (..., 256) with the offset added."""

    d: F16
    scale: npt.NDArray[np.int8]
    q: U8


def _tries(importance: F32 | None, steps: int) -> F32:
    return np.float32(steps) + (FEW if importance is None else MANY)


def as_f16(x: F64, lead: tuple[int, ...]) -> F16:
    """Scales of blocks as their field holds them."""
    return to_f16(x.astype(np.float32)).reshape(lead)


@quietly
def symmetric(x: F32, importance: F32 | None, zero: int) -> tuple[F16, U8]:
    """x = d * (q - zero), q < 2 * zero, in blocks of 32: d (...) and q (..., 32)."""
    a = lanes(x, importance, 32, 32)
    scale = step("scale_groups")(a.x, a.w, -zero, zero - 1, _tries(importance, -zero))
    d = half(a.blocks(scale)[:, 0] * a.power)
    codes, _ = step("scale_fit")(a.x, a.w, a.each(d), np.ones_like(scale), -zero, zero - 1, True)
    return as_f16(d, a.lead), a.codes(codes + np.float32(zero))


@quietly
def affine(x: F32, importance: F32 | None, top: int) -> tuple[F16, F16, U8]:
    """x = d * q + m, q <= top, in blocks of 32: d, m (...) and q (..., 32)."""
    a = lanes(x, importance, 32, 32)
    found = step("affine_groups")(a.x, a.w, top, True, np.float32(top) + MANY)
    d, m = (half(a.blocks(part)[:, 0] * a.power) for part in found)
    one = np.ones_like(found[0])
    codes, _ = step("affine_fit")(a.x, a.w, a.each(d), a.each(-m), one, one, top, True)
    return as_f16(d, a.lead), as_f16(m, a.lead), a.codes(codes)


@quietly
def affine_super(x: F32, importance: F32 | None, top: int) -> Affine:
    """x = (d * scale) * q - (dmin * low), q <= top, 6-bit scale and low (q4_k, q5_k)."""
    a = lanes(x, importance, 256, 32)
    scale, low = step("affine_groups")(a.x, a.w, top, False, _tries(importance, top))
    scale, low = (a.blocks(part) * a.power[:, None] for part in (scale, -low))
    d, dmin = unit(scale.max(axis=1) / 63), unit(low.max(axis=1) / 63)
    units, lows = (a.spread(whole(s, part, 0, 63)) for s, part in ((scale, d), (low, dmin)))
    best: tuple[F64, ...] = ()
    for last in range(ROUNDS + 1):
        lane = a.each(d), a.each(dmin)
        if last < ROUNDS:
            step("affine_refine")(a.x, a.w, *lane, units, lows, top)
        _, sums = step("affine_fit")(a.x, a.w, *lane, units, lows, top, False)
        error, least = a.totals(sums)
        best = better(best, (error, d, dmin, a.blocks(units), a.blocks(lows)))
        d, dmin = solve(d, dmin, least, a.power)
    _, d, dmin, of_scale, of_low = best
    codes, _ = step("affine_fit")(
        a.x, a.w, a.each(d), a.each(dmin), a.spread(of_scale), a.spread(of_low), top, True
    )
    units_8, lows_8 = (part.astype(np.uint8).reshape(*a.lead, 8) for part in (of_scale, of_low))
    return Affine(as_f16(d, a.lead), as_f16(dmin, a.lead), units_8, lows_8, a.codes(codes))


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


@quietly
def symmetric_super(x: F32, importance: F32 | None, zero: int) -> Symmetric:
    """x = (d * scale) * (q - zero), q < 2 * zero, signed 8-bit scale, groups of 16 (q6_k)."""
    a = lanes(x, importance, 256, 16)
    found = step("scale_groups")(a.x, a.w, -zero, zero - 1, _tries(importance, -zero))
    scale = a.blocks(found) * a.power[:, None]
    extreme = np.take_along_axis(scale, np.abs(scale).argmax(axis=1)[:, None], axis=1)[:, 0]
    d = unit(extreme / -128)
    units = a.spread(whole(scale, d, -128, 127))
    best: tuple[F64, ...] = ()
    for last in range(ROUNDS + 1):
        lane = a.each(d)
        if last < ROUNDS:
            step("scale_refine")(a.x, a.w, lane, units, -zero, zero - 1)
        _, sums = step("scale_fit")(a.x, a.w, lane, units, -zero, zero - 1, False)
        error, (sxa, saa) = a.totals(sums)
        best = better(best, (error, d, a.blocks(units)))
        d = half(np.where(saa > 0, sxa / np.where(saa > 0, saa, 1.0) * a.power, d))
    _, d, of_scale = best
    codes, _ = step("scale_fit")(a.x, a.w, a.each(d), a.spread(of_scale), -zero, zero - 1, True)
    small = of_scale.astype(np.int8).reshape(*a.lead, 16)
    return Symmetric(as_f16(d, a.lead), small, a.codes(codes + np.float32(zero)))
