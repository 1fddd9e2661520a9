"""Common loops of the fused searches, for numba and plain Python: conversion of blocks to lanes and of codes
back, and rounding of scales to their fields (scales.py has the same in numpy).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from satchel.quant.format import F32
from satchel.quant.jit.simd.vectors import WIDTH, at_least, fetch, put, put_bytes, size_of, splat, turn
from satchel.quant.search.step_loops import LANES, ZERO, code_of, inverse_of

F64 = npt.NDArray[np.float64]
U8 = npt.NDArray[np.uint8]
I8 = npt.NDArray[np.int8]
TILES = 16  # searched at a time: what they hold stays in a core's second cache
LEAST = -126  # exponent of the least number by whose inverse float32 can be multiplied


def load(x: F32, share: F32 | None, first: int, near: F32, w: F32, power: F64) -> None:
    """Blocks (n, block) from `first` on as the lanes of near [tiles, size, LANES], each divided by its power
    of two, and the weights of their columns, share (row, block), as w. Lanes beyond the last block are zeros.
    """
    size, of_block = near.shape[1], x.shape[1] // near.shape[1]
    for g in range(0, near.shape[0] * LANES, WIDTH):
        at, start = g // LANES * size * LANES + g % LANES, first * x.shape[1] + g * size
        there = (x.size - start) // size
        for i in range(0, size, WIDTH):
            if there >= WIDTH:
                turn(near, at + i * LANES, LANES, x, start + i, size)
            else:
                _turn_some(near, at + i * LANES, x, start + i, size, there)
        _scale(near, at, power, g // of_block, of_block)
    if share is not None:
        _weigh(share, first, of_block, w)


def _turn_some(near: F32, to: int, x: F32, start: int, size: int, there: int) -> None:
    """WIDTH numbers of the first groups alone, `there` of them; zeros in the other lanes."""
    flat, tile = x.reshape(-1), near.reshape(-1)
    for g in range(WIDTH):
        for i in range(WIDTH):
            tile[to + i * LANES + g] = flat[start + g * size + i] if g < there else ZERO


def _scale(near: F32, at: int, power: F64, block: int, of_block: int) -> None:
    """Divides the blocks of WIDTH lanes, the first of them number `block`, by their powers of two."""
    end, top = at + near.shape[1] * LANES, splat(ZERO)
    tops = np.empty(WIDTH, np.float32)
    for i in range(at, end, LANES):
        top = at_least(size_of(fetch(near, i)), top)
    put(tops, 0, top)
    for b in range(WIDTH // of_block):
        peak = ZERO
        for g in range(b * of_block, (b + 1) * of_block):
            peak = max(peak, tops[g])
        exponent = max(math.frexp(peak)[1], LEAST)
        power[block + b] = math.ldexp(1.0, exponent)
        for g in range(b * of_block, (b + 1) * of_block):
            tops[g] = np.float32(math.ldexp(1.0, -exponent))
    factor = fetch(tops, 0)
    for i in range(at, end, LANES):
        put(near, i, fetch(near, i) * factor)


def _weigh(share: F32, first: int, of_block: int, w: F32) -> None:
    for t in range(w.shape[0]):
        for g in range(LANES):
            n = (first + t * (LANES // of_block) + g // of_block) % share.shape[0]
            start = g % of_block * w.shape[1]
            for i in range(w.shape[1]):
                w[t, i, g] = share[n, start + i]


def store(x: F32, first: int, step: F32, base: F32, power: F64, least: int, most: int, q: U8) -> None:
    """The nearest codes least .. most of blocks (n, block) from `first` on, under each group's step and base
    [tiles, LANES], counted from `least`, as q (n, block).
    """
    groups = TILES * LANES // power.size
    size, steps, bases = x.shape[1] // groups, step.reshape(-1), base.reshape(-1)
    low, high, start = splat(np.float32(least)), splat(np.float32(most)), first * x.shape[1]
    for g in range(min(steps.size, (x.size - start) // size)):
        factor, of_step = splat(np.float32(1.0 / power[g // groups])), splat(steps[g])
        inverse, of_base = inverse_of(of_step), splat(bases[g])
        for at in range(start + g * size, start + g * size + size, WIDTH):
            code = code_of(inverse * (fetch(x, at) * factor + of_base), low, high)
            put_bytes(q, at, code - low)


def spread(of_block: F64, power: F64, out: F32) -> None:
    """A number of each block, in units of its power of two, for each of its lanes."""
    groups, lanes = TILES * LANES // power.size, out.reshape(-1)
    for b in range(out.size // groups):
        value = np.float32(of_block[b] / power[b])
        for lane in range(b * groups, (b + 1) * groups):
            lanes[lane] = value


def half(x: float) -> float:
    """x rounded to float32, then to what an f16 field can store."""
    value = np.float64(np.float32(x))
    size = abs(value)
    if not size < 65520.0:
        return value * np.inf
    if size < 2.0**-14:
        rounded = np.rint(size * 2.0**24) * 2.0**-24
    else:
        grid = math.ldexp(1.0, math.frexp(size)[1] - 11)
        rounded = np.rint(size / grid) * grid
    return math.copysign(rounded, value)


def unit(x: float) -> float:
    """What group scales are counted in, see scales.py."""
    if abs(x) < 2.0**-14:
        return math.copysign(np.ceil(abs(x) * 2.0**24) * 2.0**-24, x)
    return half(x)


def whole(x: float, by: float, least: float, most: float) -> float:
    """x in units of `by`, whole; 0 where that is 0 or infinite."""
    if by == 0.0 or not np.isfinite(by):
        return 0.0
    found: float = min(max(np.rint(x / by), least), most)
    return found
