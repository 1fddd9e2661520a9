"""Searches of the IQ formats: for each run of vectors a step, for each vector a point of the format's
codebook.

Each vector's candidates are its nearest points under sixteen steps about the likely one, found among all
points. On them all steps that a block can store are tried. A block's d begins at what its runs would like
best, then is refitted to the chosen points by least squares, as in least_squares.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from satchel.errors import RequestError
from satchel.quant import codebook
from satchel.quant.format import F32
from satchel.quant.native.compiled import compiled
from satchel.quant.pack import F16, U8, quietly, rows, to_f16
from satchel.quant.search import grid_loops
from satchel.quant.search.scales import floored, weights

I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
ROUNDS = 2  # of refits
STARTS = 16  # steps that give candidates
RANGE = (0.45, 2.6)  # of these steps, in likely ones
SCRATCH = 1 << 16  # numbers in a table of terms, which then stays in a processor's cache
BLOCKS = 1024  # searched at a time


@dataclass(frozen=True, slots=True)
class CodebookLayout:
    """How a format uses a codebook."""

    points: str  # (count, width)
    run: int  # numbers that share a step
    steps: int  # the number of possible steps: 1, 3, 5 ... times d / unit, d as it is stored
    unit: float = 1.0
    even: int = 0  # numbers whose signs have an even number of minuses; 0: signs are free
    # Distance by which each point is moved up or down, where points have signs of their own.
    shift: float = 0.0
    shared: bool = False  # all points of a run are moved in one direction

    @property
    def variants(self) -> int:
        """Terms that each vector needs: both directions, or with and without a wrong sign where another
        vector of the same sign field could have it.
        """
        return 2 if self.shift or self.even > codebook.grid(self.points).shape[1] else 1


@dataclass(frozen=True, slots=True)
class GridCodes:
    """Blocks of 256: d (...); scale (..., 256 / run), of which the step is 2 scale + 1; points (..., 256 /
    width), indexes; minus (..., 256), where points have no signs; down (..., 256 / width), the shifts.
    """

    d: F16
    scale: U8
    points: I64
    minus: Bools
    down: Bools


@dataclass(frozen=True, slots=True)
class BlockSearch:
    """The search state of a batch of blocks: x, w (vectors, width); odd (vectors,), where the signs of x are
    not even; points (runs, vectors, variants, candidates) that could be chosen, with their terms a and b
    (grid_loops.py): the nearest under each of the steps (runs, candidates).
    """

    layout: CodebookLayout
    x: F32
    w: F32
    odd: Bools
    steps: F32
    points: I64
    a: F32
    b: F32


@dataclass(frozen=True, slots=True)
class GridChoice:
    """The best step of each run: error (runs,), index of the step (runs,), variants and points (runs,
    vectors), fit (runs, 2): sums of a and b over the points, whose quotient is the step that suits them best.
    """

    error: F32
    index: I64
    variants: I64
    points: I64
    fit: F32


def needed(importance: F32 | None, name: str) -> F32:
    """The importance; RequestError where there is none."""
    if importance is None:
        raise RequestError(
            f"{name} needs importance data, without which its few codes go to the wrong weights: make it with"
            " `satchel imatrix` and give it by --imatrix, or choose q2_k, iq3_xxs or a larger type"
        )
    return importance


def _terms(x: F32, w: F32, odd: Bools, layout: CodebookLayout) -> tuple[F32, F32]:
    """a, b (vectors, variants, points) of vectors x, w (vectors, width)."""
    grid = codebook.grid(layout.points)
    a = np.empty((len(x), layout.variants, len(grid)), np.float32)
    b = np.empty_like(a)
    columns = np.ascontiguousarray(grid.T)
    if layout.shift:
        compiled(grid_loops.shifted_terms)(x, w, columns, np.float32(layout.shift), a, b)
    else:
        compiled(grid_loops.signed_terms)(np.abs(x), w, columns, odd, a, b)
    return a, b


def _part(x: F32, w: F32, layout: CodebookLayout) -> BlockSearch:
    """The candidates of blocks x, w (blocks, 256): the nearest points under steps from a small one
    to one under which the largest number fits the largest coordinate.
    """
    grid = codebook.grid(layout.points)
    width = grid.shape[1]
    vectors, weight = x.reshape(-1, width), w.reshape(-1, width)
    odd = np.zeros(len(vectors), np.bool_)
    if layout.even:
        odd = np.repeat((x.reshape(-1, layout.even) < 0).sum(axis=1) % 2 == 1, layout.even // width)
    energy, mass = ((part.reshape(-1, layout.run)).sum(axis=1) for part in (w * x * x, w))
    likely = np.sqrt(energy / np.where(mass > 0, mass, 1) / (grid * grid).mean())
    peak = np.abs(x).reshape(-1, layout.run).max(axis=1) / grid.max()
    least, most = likely * RANGE[0], np.maximum(likely * RANGE[1], peak)
    ratio = most / np.where(least > 0, least, 1)
    tried = least[:, None] * ratio[:, None] ** np.linspace(0, 1, STARTS, dtype=np.float32)
    steps = np.repeat(tried, layout.run // width * layout.variants, axis=0)
    steps = steps.reshape(len(vectors), layout.variants, STARTS)
    found = [np.empty(steps.shape, np.float32) for _ in range(3)]
    size = max(1, SCRATCH // (layout.variants * len(grid)))
    for i in range(0, len(vectors), size):
        cut = slice(i, i + size)
        a, b = (part.reshape(-1, len(grid)) for part in _terms(vectors[cut], weight[cut], odd[cut], layout))
        points, a_found, b_found = (part[cut].reshape(len(a), -1) for part in found)
        compiled(grid_loops.nearest)(a, b, steps[cut].reshape(len(a), -1), points)
        a_found[:] = np.take_along_axis(a, points.astype(np.int64), axis=1)
        b_found[:] = np.take_along_axis(b, points.astype(np.int64), axis=1)
    shape = (x.size // layout.run, layout.run // width, layout.variants, STARTS)
    points, a, b = (part.reshape(shape) for part in found)
    return BlockSearch(layout, vectors, weight, odd, tried, points.astype(np.int64), a, b)


def _try(part: BlockSearch, steps: F32) -> tuple[F32, npt.NDArray[Any]]:
    """Error of each run under each of its steps (runs, steps), and the variant that each vector then has
    (runs, vectors, steps).
    """
    layout, lead = part.layout, part.a.shape[:3]
    best = np.empty((*lead, steps.shape[1]), np.float32)
    each = np.ascontiguousarray(np.broadcast_to(steps[:, None, None], best.shape))
    flat = [array.reshape(-1, array.shape[3]) for array in (part.a, part.b, each, best)]
    compiled(grid_loops.minima)(*flat)
    if layout.shared:
        both = best.sum(axis=1)
        return both.min(axis=1), np.repeat(both.argmin(axis=1)[:, None], best.shape[1], axis=1)
    if layout.shift:
        return best.min(axis=2).sum(axis=1), best.argmin(axis=2)
    if layout.variants == 1:
        return best[:, :, 0].sum(axis=1), np.zeros((*lead[:2], steps.shape[1]), np.int64)
    # One vector of each field takes the wrong sign: the one that loses least by it.
    share = layout.even // part.x.shape[1]
    fielded = best.reshape(len(best), lead[1] // share, share, *best.shape[2:])
    loss = fielded[:, :, :, 1] - fielded[:, :, :, 0]
    odd = part.odd.reshape(fielded.shape[:3])[..., None]
    wrong = (np.arange(loss.shape[2])[:, None] == loss.argmin(axis=2)[:, :, None]) & odd
    errors = np.where(wrong, fielded[:, :, :, 1], fielded[:, :, :, 0]).sum(axis=(1, 2))
    return errors, wrong.reshape(*lead[:2], steps.shape[1]).astype(np.int64)


def _at(array: npt.NDArray[Any], index: npt.NDArray[Any], axis: int) -> npt.NDArray[Any]:
    """The entries of `array` at `index` along an axis, without that axis; the other dimensions broadcast."""
    one = (*array.shape[:axis], 1, *array.shape[axis + 1 :])
    return np.take_along_axis(array, np.broadcast_to(np.expand_dims(index, axis), one), axis).squeeze(axis)


def _choose(part: BlockSearch, steps: F32) -> GridChoice:
    """The best step of each run, from its steps (runs, steps)."""
    errors, variants = _try(part, steps)
    index = errors.argmin(axis=1)
    step, taken = _at(steps, index, 1)[:, None, None], _at(variants, index[:, None], 2)
    points, a, b = (_at(each, taken[..., None], 2) for each in (part.points, part.a, part.b))
    nearest = ((step * b - 2 * a) * step).argmin(axis=2)
    points, a, b = (_at(each, nearest, 2) for each in (points, a, b))
    fit = np.stack([a.sum(axis=1), b.sum(axis=1)], axis=1)
    return GridChoice(_at(errors, index, 1), index, taken, points, fit)


def _first(part: BlockSearch) -> F32:
    """d (blocks,) under which the largest step is what the run that wants the largest likes best."""
    fit = _choose(part, part.steps).fit
    wanted = np.where(fit[:, 1] > 0, fit[:, 0] / np.where(fit[:, 1] > 0, fit[:, 1], 1), 0)
    most: F32 = wanted.reshape(-1, 256 // part.layout.run).max(axis=1) / np.float32(2 * part.layout.steps - 1)
    return most


def _steps(stored: F16, scale: F32, layout: CodebookLayout) -> F32:
    """(runs, steps) that each run can choose from, in units of the blocks' scale."""
    d = np.repeat(stored.astype(np.float32) / scale, 256 // layout.run)
    steps: F32 = d[:, None] * np.arange(1, 2 * layout.steps, 2, dtype=np.float32)
    return steps


def _search(x: F32, w: F32, layout: CodebookLayout) -> tuple[F16, GridChoice, BlockSearch]:
    """Searches blocks x, w (blocks, 256): the d to store, and the choices of its runs."""
    most = np.abs(x).max(axis=1)
    scale = np.where(most > 0, most, np.float32(1)) * np.float32(layout.unit)
    part = _part(x * np.float32(layout.unit) / scale[:, None], w, layout)
    stored = to_f16(_first(part) * scale)
    best = (stored, _choose(part, _steps(stored, scale, layout)))
    last = best[1]
    for _ in range(ROUNDS):
        fit = last.fit.astype(np.float64).reshape(len(x), 256 // layout.run, 2)
        unit = 2.0 * last.index.reshape(fit.shape[:2]) + 1
        top, bottom = (fit[..., 0] * unit).sum(axis=1), (fit[..., 1] * unit * unit).sum(axis=1)
        stored = to_f16((top / np.where(bottom > 0, bottom, 1) * scale).astype(np.float32))
        last = _choose(part, _steps(stored, scale, layout))
        best = _better(best, (stored, last))
    return best[0], best[1], part


def _better(old: tuple[F16, GridChoice], new: tuple[F16, GridChoice]) -> tuple[F16, GridChoice]:
    """Block by block the one of smaller error."""
    shape = (len(old[0]), len(old[1].error) // max(len(old[0]), 1))
    wins = new[1].error.reshape(shape).sum(axis=1) < old[1].error.reshape(shape).sum(axis=1)
    runs = np.repeat(wins, shape[1])

    def merged(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.where(runs.reshape(-1, *[1] * (first.ndim - 1)), second, first)

    a, b = old[1], new[1]
    return np.where(wins, new[0], old[0]), GridChoice(
        merged(a.error, b.error),
        merged(a.index, b.index),
        merged(a.variants, b.variants),
        merged(a.points, b.points),
        merged(a.fit, b.fit),
    )


def _minus(part: BlockSearch, found: GridChoice) -> Bools:
    """(vectors, width) signs to be stored: those of x, but for the number that takes a wrong one."""
    minus: Bools = np.asarray(part.x < 0)
    wrong = part.odd & ((found.variants.reshape(-1) == 1) | (part.layout.variants == 1))
    cost = part.w * np.abs(part.x) * codebook.grid(part.layout.points)[found.points.reshape(-1)]
    flipped: Bools = minus ^ (wrong[:, None] & (np.arange(minus.shape[1]) == cost.argmin(axis=1)[:, None]))
    return flipped


@quietly
def search(x: F32, importance: F32 | None, layout: CodebookLayout) -> GridCodes:
    """x (..., n * 256) in blocks of 256, some at a time, so that the terms stay in the cache."""
    values = rows(x, 256)
    lead, wide = values.shape[:-1], floored(weights(values, importance).reshape(-1, 256))
    w: F32 = (wide / wide.max(axis=1)[:, None]).astype(np.float32)
    values = values.reshape(-1, 256)
    finite: Bools = np.asarray(np.isfinite(values).all(axis=1))
    values = np.where(finite[:, None], values, np.float32(0))
    width = codebook.grid(layout.points).shape[1]
    pieces = []
    for i in range(0, max(len(values), 1), BLOCKS):
        d, found, part = _search(values[i : i + BLOCKS], w[i : i + BLOCKS], layout)
        minus = _minus(part, found) if layout.shift == 0 else np.zeros(part.x.shape, np.bool_)
        pieces.append((d, found.index, found.points, minus, found.variants == 1))
    d, scale, points, minus, down = (np.concatenate(each) for each in zip(*pieces, strict=True))
    return GridCodes(
        np.where(finite, d, np.float16(np.nan)).reshape(lead),
        scale.astype(np.uint8).reshape(*lead, 256 // layout.run),
        points.reshape(*lead, 256 // width),
        minus.reshape(*lead, 256),
        down.reshape(*lead, 256 // width),
    )
