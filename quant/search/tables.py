"""Scale searches of the formats whose codes index a table of values: iq4_nl, iq4_xs, mxfp4, nvfp4."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from satchel.errors import RequestError
from satchel.quant.codebook import E2M1, NONLINEAR
from satchel.quant.format import F32, Blocks
from satchel.quant.native.compiled import compiled
from satchel.quant.pack import F16, U8, quietly, rows, to_f16
from satchel.quant.search import table_loops
from satchel.quant.search.scales import F64, as_f16, better, floored, groups, half, unit, weights

ROUNDS = 3
_PLACES = (np.arange(512) - 255.5) / 2  # a number within each interval of the table of nearest values
# What the largest number of a group is put on: the table's ends, and less or more of both signs.
TARGETS = np.concatenate([np.linspace(-150, -84, 34), np.linspace(76, 134, 30)])


SOME = 1 << 16  # numbers that are searched at a time


def some_at_a_time(encode: Callable[[F32, F32 | None], Blocks]) -> Callable[..., Blocks]:
    """The encoder, on some rows after the others: fresh memory for float64 arrays of many costs as much as a
    search.
    """

    @functools.wraps(encode)
    def encoded(x: F32, importance: F32 | None = None) -> Blocks:
        every = x.reshape(-1, x.shape[-1])
        count = max(1, SOME // x.shape[-1])
        if len(every) <= count:
            return encode(x, importance)
        parts = [encode(every[i : i + count], importance) for i in range(0, len(every), count)]
        return np.concatenate(parts).reshape(*x.shape[:-1], -1)

    return encoded


def _codes_of(table: npt.NDArray[np.int8]) -> U8:
    codes: U8 = np.abs(_PLACES[:, None] - table).argmin(axis=1).astype(np.uint8)
    return codes


@functools.cache
def _tables(name: str) -> tuple[U8, F64]:
    """Code and value for each interval of half a unit, see table_loops.py."""
    table = {"nonlinear": NONLINEAR, "e2m1": E2M1}[name]
    codes = _codes_of(table)
    return codes, table[codes].astype(np.float64)


def _codes(x: F64, steps: F64, name: str) -> U8:
    """Nearest codes of x (..., size) under steps (...)."""
    inverse = np.where(steps != 0, 2 / np.where(steps != 0, steps, 1), 0)[..., None]
    place = np.clip(np.floor(np.nan_to_num(x * inverse)), -256, 255)
    found: U8 = _tables(name)[0][place.astype(np.int64) + 256]
    return found


def _scales(x: F64, w: F64) -> F64:
    """Best scales (n,) of groups (n, size) for the values of iq4_nl."""
    found = np.zeros(len(x))
    compiled(table_loops.table_scales)(x, w, TARGETS, _tables("nonlinear")[1], found)
    return found


def _choose(x: F64, w: F64, scales: F64, nearest: F64, choices: F64) -> F64:
    """The scale that errs least for each group, into choices; the weighted errors of the blocks."""
    totals = np.empty(len(x))
    compiled(table_loops.table_choices)(x, w, scales, nearest, choices, totals)
    return totals


def _fitted(x: F64, w: F64, d: F64, units: F64) -> F64:
    """The d of each block that suits its codes best."""
    found = np.empty_like(d)
    compiled(table_loops.table_fit)(x, w, d, units, _tables("nonlinear")[1], found)
    return found


@quietly
def nonlinear(x: F32, importance: F32 | None) -> tuple[F16, U8]:
    """x = d * table[q] in blocks of 32: d (...) and q (..., 32) (iq4_nl)."""
    lead, values, w = groups(x, importance, 32, 32)
    nearest = _tables("nonlinear")[1]
    d = half(_scales(values[:, 0], w[:, 0]))
    ones = np.ones((len(values), 1))
    best: tuple[F64, ...] = ()
    for _ in range(ROUNDS):
        best = better(best, (_choose(values, w, d[:, None], nearest, np.empty_like(ones)), d))
        d = half(_fitted(values, w, d, ones))
    d = best[1]
    q = _codes(values[:, 0], d, "nonlinear")
    return as_f16(d, lead), q.reshape(*lead, 32)


@quietly
def nonlinear_super(x: F32, importance: F32 | None) -> tuple[F16, npt.NDArray[np.int8], U8]:
    """x = (d * scale) * table[q], groups of 32, scale from -32 to 31: d (...), scale (..., 8), q (..., 256)
    (iq4_xs).
    """
    lead, values, w = groups(x, importance, 256, 32)
    nearest = _tables("nonlinear")[1]
    scale = _scales(values.reshape(-1, 32), w.reshape(-1, 32)).reshape(-1, 8)
    extreme = np.take_along_axis(scale, np.abs(scale).argmax(axis=1)[:, None], axis=1)[:, 0]
    d, units = unit(extreme / -32), np.empty(scale.shape)
    best: tuple[F64, ...] = ()
    for _ in range(ROUNDS):
        scales = d[:, None] * np.arange(-32.0, 32.0)
        error = _choose(values, w, scales, nearest, units)
        units -= 32
        best = better(best, (error, d, units.copy()))
        d = half(_fitted(values, w, d, units))
    if best:
        _, d, units = best
    q = _codes(values, d[:, None] * units, "nonlinear")
    return as_f16(d, lead), units.astype(np.int8).reshape(*lead, 8), q.reshape(*lead, 256)


@quietly
def floats(
    x: F32, importance: F32 | None, block: int, group: int, scales: F64, largest: float
) -> tuple[U8, U8]:
    """x = scale * e2m1[q] with one of `scales` (blocks or 1, candidates) for each group: which of them (...,
    block / group), and q (..., block) (mxfp4, nvfp4). RequestError for what these formats can't hold, which
    have no infinity and no NaN.
    """
    if not (np.abs(x) <= largest).all():
        found = "NaN" if np.isnan(x).any() else f"{np.abs(x).max():g}"
        raise RequestError(f"expected numbers up to {largest:g}, got {found}; choose bf16 or f32")
    lead, values, w = groups(x, importance, block, group)
    choices = np.empty(values.shape[:2])
    scales = np.ascontiguousarray(np.broadcast_to(scales, (len(values), scales.shape[1])), np.float64)
    _choose(values, w, scales, _tables("e2m1")[1], choices)
    chosen = choices.astype(np.int64)
    q = _codes(values, np.take_along_axis(scales, chosen, axis=1), "e2m1")
    return chosen.astype(np.uint8).reshape(*lead, block // group), q.reshape(*lead, block)


@quietly
def ternary(x: F32, importance: F32 | None) -> tuple[F16, U8]:
    """x = d * (q - 1), q < 3, in blocks of 256: d (...) and q (..., 256), the least error there is but for
    the rounding of d (tq1_0, tq2_0).

    Under any d the numbers that are not 0 are the largest ones, so all 256 such sets are looked at.
    """
    x = rows(x, 256)
    size, w = np.abs(x).astype(np.float64), weights(x, importance)
    w = floored(w.reshape(-1, 256)).reshape(x.shape)
    order = np.argsort(-size, axis=-1, kind="stable")
    total = np.take_along_axis(w * size, order, axis=-1).cumsum(axis=-1)
    share = np.take_along_axis(w, order, axis=-1).cumsum(axis=-1)
    share = np.where(share > 0, share, 1)
    best = (total * total / share).argmax(axis=-1)[..., None]
    d = to_f16((np.take_along_axis(total, best, -1) / np.take_along_axis(share, best, -1)).astype(np.float32))
    away = (size > d.astype(np.float64) / 2) & (d > 0)
    return d[..., 0], np.where(away, np.where(x < 0, 0, 2), 1).astype(np.uint8)
