"""Arguments for every loop of the quantizer: usual numbers, and extreme ones (NaN, infinities, zeros,
denormals, huge). Each call makes new arrays, because loops write into some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import isfunction
from typing import Any

import numpy as np

from satchel.quant import codebook
from satchel.quant.calibration import gptq_loops
from satchel.quant.search import grid_loops, step_loops, table_loops
from satchel.quant.search.lanes import WIDE

Loop = Callable[..., None]
KINDS = ("usual", "tiny", "extreme")
STEPS = [name for name, found in vars(step_loops).items() if isfunction(found)]
# Loops without a definition in numpy: plain Python runs them, slowly.
SCALAR = [
    getattr(module, name)
    for module, names in (
        (table_loops, ("table_scales", "table_choices", "table_fit")),
        (grid_loops, ("signed_terms", "shifted_terms", "nearest", "minima")),
        (gptq_loops, ("feed_run", "move_run", "dots")),
    )
    for name in names
]


def numbers(kind: str, seed: int, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if kind == "tiny":
        x *= 1e-6
    x = x.astype(dtype)
    if kind == "extreme":
        bad = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, -1e-42, 3e38, -3e38, 1e-30]
        where = rng.random(shape) < 0.03
        x[where] = rng.choice(np.array(bad, dtype), int(where.sum()))
    return x


def tiles(kind: str) -> Any:
    """Groups in the search steps' layout: [tiles, size, lanes]."""
    x = numbers(kind, 21, (2, 32, WIDE))
    if kind == "extreme":
        x[1, :, :7] = 0
        x[1, :, 0], x[1, :, 1], x[1, 3, 2], x[1, :, 3] = 0.5, -0.5, 1.0, 1e-30
        x[1, :, 4], x[1, ::2, 5], x[1, :, 6] = (np.arange(32) - 16) / 32, -1.0, -1e-42
    return x


def step_arguments(name: str, kind: str) -> Iterator[tuple[list[Any], list[Any]]]:
    """Pairs of a step's arguments, and the arrays among them that it writes."""
    x = tiles(kind)
    w = np.abs(numbers("usual", 5, x.shape)) + np.float32(0.5)
    d = np.nan_to_num(np.abs(x), posinf=1).max(axis=1) / np.float32(300)
    units, lows = np.full_like(d, 20), np.full_like(d, 63)
    units[:, 1] = 0
    many = np.linspace(-1.2, 1.2, 25, dtype=np.float32)
    if name == "scale_groups":
        for least in (-8, -32):
            scales = np.empty_like(d)
            yield [x, w, least, -least - 1, np.float32(least) + many, scales], [scales]
    elif name == "affine_groups":
        for top, free in ((15, False), (31, True)):
            found = [np.empty_like(d), np.empty_like(d)]
            yield [x, w, top, free, np.float32(top) + many, *found], found
    elif name in ("scale_refine", "scale_fit"):
        sums = [] if name == "scale_refine" else [np.empty((3, *d.shape), np.float32)]
        yield [x, w, -d, units, -32, 31, *sums], [units, *sums]
    elif name in ("affine_refine", "affine_fit"):
        sums = [] if name == "affine_refine" else [np.empty((6, *d.shape), np.float32)]
        yield [x, w, d, d / 2, units, lows, 15, *sums], [units, lows, *sums]
    elif name == "scale_units":
        yield [x, w, d * 30, units], [units]
    else:
        for reach in (15, 2):
            near = [units.copy(), np.minimum(lows, 12)]
            yield [x, w, d * 30, d, *near, reach], near


def scalar_arguments(name: str, kind: str) -> tuple[list[Any], list[Any]]:
    """A loop's arguments, and the arrays among them that it writes. Small: plain Python runs the loop too."""
    if name.startswith("table"):
        x, w = numbers(kind, 1, (3, 2, 16), np.float64), np.abs(numbers("usual", 2, (3, 2, 16), np.float64))
        nearest = np.clip(np.arange(512) - 256, -12, 12).astype(float)
        scales = np.outer([0.02, -0.03, 0.0], np.arange(-2, 9))
        if kind == "extreme":
            scales[1, 3:5] = 1e-320, np.inf
        if name == "table_scales":
            found = np.zeros(6)
            x, w = x.reshape(6, 16), w.reshape(6, 16)
            return [x, w, np.linspace(-13, 13, 11), nearest, found], [found]
        if name == "table_choices":
            choices, totals = np.empty((3, 2)), np.empty(3)
            return [x, w, scales, nearest, choices, totals], [choices, totals]
        better, units = np.empty(3), np.array([[3.0, -2], [0, 5], [7, 7]])
        return [x, w, np.array([0.02, -0.03, 0.0]), units, nearest, better], [better]
    if name in ("signed_terms", "shifted_terms"):
        grid = np.ascontiguousarray(codebook.grid("iq2_xxs").T[:, :37])
        x, w = numbers(kind, 3, (3, 8)), np.abs(numbers("usual", 4, (3, 8)))
        a, b = np.full((2, 3, 2, 37), 7, np.float32)
        odd = np.array([True, False, True])
        if name == "signed_terms":
            return [np.abs(x), w, grid, odd, a, b], [a, b]
        return [x, w, grid, np.float32(0.125), a, b], [a, b]
    if name in ("nearest", "minima"):
        a, b = numbers(kind, 5, (3, 40)), np.abs(numbers(kind, 6, (3, 40)))
        found = np.empty((3, 18), np.float32)
        return [a, b, np.abs(numbers("usual", 7, (3, 18))), found], [found]
    return gptq_arguments(name, kind)


def gptq_arguments(name: str, kind: str) -> tuple[list[Any], list[Any]]:
    columns, rows = 5, 131
    w, step = numbers(kind, 8, (columns, rows)), np.abs(numbers(kind, 9, (columns, rows))) / 8
    if name == "dots":
        out = np.empty(rows, np.float32)
        return [w, step, out], [out]
    sums, error = numbers("usual", 10, (columns, rows)), numbers("usual", 11, (columns, rows)) / 50
    code = np.rint(numbers("usual", 12, (columns, rows)) * 3)
    matrix = numbers("usual", 13, (columns, columns))
    matrix[np.diag_indices(columns)] = [2, 0, 1, -1, 3]
    return [sums, w, error, code, matrix, step, step / 2, -8.0, 7.0], [sums, error, code]
