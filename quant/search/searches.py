"""The scale searches from numbers to codes, made of steps: what each gives, in numpy. C computes the same
bits, each search as a whole.

x: blocks (n, block), float32. share: the weights of their columns, see scales.shares; None: all weigh the
same. Results go into arrays of the caller: scales as float64, exactly what the fields can store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from satchel.quant.format import F32
from satchel.quant.native.compiled import compiled
from satchel.quant.pack import U8
from satchel.quant.search import step_loops, steps
from satchel.quant.search.lanes import Lanes, lanes
from satchel.quant.search.scales import F64, better, half, unit, whole

I8 = npt.NDArray[np.int8]
EVERY, NEAR = 15, 2  # how far lows are looked for: in the first round everywhere, then near the last ones


def _step(name: str) -> Callable[..., Any]:
    """A step, compiled where that can be."""
    return compiled(getattr(step_loops, name), getattr(steps, name))


def _scale_groups(a: Lanes, least: int, most: int, tries: F32) -> F64:
    """The scales of the groups [blocks, groups]."""
    found = np.empty_like(a.x[:, 0])
    _step("scale_groups")(a.x, a.w, least, most, tries, found)
    return a.blocks(found) * a.power[:, None]


def _affine_groups(a: Lanes, top: int, free: bool, tries: F32) -> tuple[F64, F64]:
    """The scales and the bases of the groups [blocks, groups]."""
    scales, bases = np.empty_like(a.x[:, 0]), np.empty_like(a.x[:, 0])
    _step("affine_groups")(a.x, a.w, top, free, tries, scales, bases)
    return a.blocks(scales) * a.power[:, None], a.blocks(bases) * a.power[:, None]


def _codes(a: Lanes, step: F32, base: F32 | None, least: int, most: int) -> U8:
    """The nearest codes (blocks, block) under each group's step and base [tiles, WIDE], from `least` on."""
    q = steps.nearest_codes(a.x, step, np.zeros_like(step) if base is None else base, least, most)
    return a.codes(q - np.float32(least))


def symmetric(x: F32, share: F32 | None, zero: int, tries: F32, d: F64, q: U8) -> None:
    """x = d * (q - zero), q < 2 * zero: d (n,), q (n, block)."""
    a = lanes(x, share, x.shape[1])
    d[...] = half(_scale_groups(a, -zero, zero - 1, tries)[:, 0])
    q[...] = _codes(a, a.each(d), None, -zero, zero - 1)


def affine(x: F32, share: F32 | None, top: int, tries: F32, d: F64, m: F64, q: U8) -> None:
    """x = d * q + m, q <= top: d, m (n,), q (n, block)."""
    a = lanes(x, share, x.shape[1])
    scale, base = _affine_groups(a, top, True, tries)
    d[...], m[...] = half(scale[:, 0]), half(base[:, 0])
    q[...] = _codes(a, a.each(d), a.each(-m), 0, top)


def affine_super(
    x: F32, share: F32 | None, top: int, tries: F32, rounds: int, d: F64, dmin: F64, scale: U8, low: U8, q: U8
) -> None:
    """x = (d * scale) * q - (dmin * low), q <= top, 6-bit scale and low, for blocks of 256 in groups of 32:
    d, dmin (n,), scale, low (n, 8), q (n, 256).
    """
    a = lanes(x, share, 32)

    def improve(of_d: F32, of_dmin: F32, units: F32, lows: F32, _: int) -> None:
        _step("affine_refine")(a.x, a.w, of_d, of_dmin, units, lows, top)

    scales, bases = _affine_groups(a, top, False, tries)
    _affine(a, (scales, 0 - bases), top, 63, rounds, improve, (d, dmin, scale, low, q))


def affine_low(
    x: F32, share: F32 | None, tries: F32, rounds: int, d: F64, dmin: F64, scale: U8, low: U8, q: U8
) -> None:
    """x = (d * scale) * q - (dmin * low), q < 4, for blocks of 256 in groups of 16: d, dmin (n,), scale and
    low (n, 16) below 16, q (n, 256). Every unit is tried.
    """
    a = lanes(x, share, 16)

    def improve(of_d: F32, of_dmin: F32, units: F32, lows: F32, turn: int) -> None:
        _step("affine_units")(a.x, a.w, of_d, of_dmin, units, lows, NEAR if turn else EVERY)

    scales, bases = _affine_groups(a, 3, False, tries)
    _affine(a, (scales, -bases), 3, 15, rounds, improve, (d, dmin, scale, low, q))


def _affine(
    a: Lanes,
    found: tuple[F64, F64],
    top: int,
    last: int,
    rounds: int,
    improve: Callable[..., None],
    out: tuple[F64, F64, U8, U8, U8],
) -> None:
    """Improves the groups' scales and lows, counted in units up to `last`, and those units, in turn."""
    scale, low = found
    d, dmin = unit(np.fmax.reduce(scale, axis=1, initial=0) / last), unit(low.max(axis=1) / last)
    units, lows = (a.spread(whole(s, part, 0, last)) for s, part in ((scale, d), (low, dmin)))
    best: tuple[F64, ...] = ()
    sums = np.empty((6, *units.shape), np.float32)
    for turn in range(rounds + 1):
        of_lane = a.each(d), a.each(dmin)
        if turn < rounds:
            improve(*of_lane, units, lows, turn)
        _step("affine_fit")(a.x, a.w, *of_lane, units, lows, top, sums)
        error, least = a.totals(sums)
        best = better(best, (error, d, dmin, a.blocks(units), a.blocks(lows)))
        d, dmin = _solve(d, dmin, least, a.power)
    _, d, dmin, of_scale, of_low = best
    out[0][...], out[1][...] = d, dmin
    out[2][...], out[3][...] = _stored(of_scale, np.uint8), _stored(of_low, np.uint8)
    out[4][...] = _codes(a, a.each(d) * a.spread(of_scale), a.each(dmin) * a.spread(of_low), 0, top)


def _stored(units: F64, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Units as a field; a NaN, of a block that is none anyway, as 0."""
    return np.where(np.isnan(units), 0, units).astype(dtype)


def _solve(d: F64, dmin: F64, sums: F64, power: F64) -> tuple[F64, F64]:
    """d and dmin [blocks] of least squares for the codes that gave these sums [5, blocks] of affine_fit; as
    they were where there is none.
    """
    sxa, sxb, saa, sab, sbb = sums
    determinant = saa * sbb - sab * sab
    safe = np.where(determinant > 0, determinant, 1.0)
    fit, fit_min = (sbb * sxa - sab * sxb) / safe, (saa * sxb - sab * sxa) / safe
    both = (determinant > 0) & (determinant > 1e-6 * saa * sbb) & (fit > 0) & (fit_min >= 0)
    alone = ~both & (saa > 0) & (sbb == 0)
    only = sxa / np.where(alone, saa, 1.0)
    found = np.where(both, fit * power, np.where(alone, only * power, d))
    return half(found), half(np.where(both, fit_min * power, dmin))


def symmetric_super(
    x: F32, share: F32 | None, zero: int, tries: F32, rounds: int, d: F64, scale: I8, q: U8
) -> None:
    """x = (d * scale) * (q - zero), q < 2 * zero, signed 8-bit scale, for blocks of 256 in groups of 16: d
    (n,), scale (n, 16), q (n, 256).
    """
    a = lanes(x, share, 16)

    def improve(of_d: F32, units: F32) -> None:
        _step("scale_refine")(a.x, a.w, of_d, units, -zero, zero - 1)

    found = _scale_groups(a, -zero, zero - 1, tries)
    first = unit(_extreme(found) / -128)
    _symmetric(a, first, whole(found, first, -128, 127), zero, rounds, improve, (d, scale, q))


def symmetric_low(x: F32, share: F32 | None, tries: F32, rounds: int, d: F64, scale: I8, q: U8) -> None:
    """x = (d * scale) * (q - 4), q < 8, for blocks of 256 in groups of 16: d (n,), scale (n, 16) from -32 to
    31, q (n, 256). Every unit is tried.
    """
    a = lanes(x, share, 16)

    def improve(of_d: F32, units: F32) -> None:
        _step("scale_units")(a.x, a.w, of_d, units)

    found = _scale_groups(a, -4, 3, tries)
    _symmetric(a, unit(_extreme(found) / -32), np.zeros_like(found), 4, rounds, improve, (d, scale, q))


def _extreme(scale: F64) -> F64:
    """The scale of largest magnitude of each block."""
    place = np.abs(scale).argmax(axis=1)[:, None]
    return np.take_along_axis(scale, place, axis=1)[:, 0]


def _symmetric(
    a: Lanes,
    d: F64,
    start: F64,
    zero: int,
    rounds: int,
    improve: Callable[[F32, F32], None],
    out: tuple[F64, I8, U8],
) -> None:
    """Improves the groups' units, from `start`, and d in turn."""
    units = a.spread(start)
    best: tuple[F64, ...] = ()
    sums = np.empty((3, *units.shape), np.float32)
    for turn in range(rounds + 1):
        of_lane = a.each(d)
        if turn < rounds:
            improve(of_lane, units)
        _step("scale_fit")(a.x, a.w, of_lane, units, -zero, zero - 1, sums)
        error, (sxa, saa) = a.totals(sums)
        best = better(best, (error, d, a.blocks(units)))
        d = half(np.where(saa > 0, sxa / np.where(saa > 0, saa, 1.0) * a.power, d))
    _, d, of_scale = best
    out[0][...], out[1][...] = d, _stored(of_scale, np.int8)
    out[2][...] = _codes(a, a.each(d) * a.spread(of_scale), None, -zero, zero - 1)
