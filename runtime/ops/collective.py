"""Ops of tensor parallelism: the collectives, at which ranks meet, and those on a part of a weight; see the
package.

A collective is defined over the values of all ranks (`meets`); its definition on one rank's values is that of
a group of one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from satchel.runtime.graph import Array, Dim, Type
from satchel.runtime.ops.op import op
from satchel.runtime.ops.op import rows_of as _rows

Ranks = Sequence[tuple[Array, ...]]  # the sources of each rank, in order


def _reduced(ranks: Ranks) -> Array:
    """The sum of partial values in the order of ranks, then the residual, which is whole."""
    total = np.array(ranks[0][0], np.float32)
    for y, *_ in ranks[1:]:
        total = total + y
    return np.asarray(total + ranks[0][1] if len(ranks[0]) > 1 else total, np.float32)


def _residual(y: Type, *rest: Type) -> Type:
    if len(rest) > 1 or any(r.shape not in (y.shape, y.shape[-1:]) for r in rest):
        raise TypeError(f"reduce_add: {y} and residual {rest}")
    return y


@op(_residual, meets=_reduced)
def reduce_add(y: Array, *r: Array) -> Array:
    """All-reduce: the sum over ranks of y (T, N), in the order of ranks, plus r (T, N) or (N), which is whole
    and optional. Every rank has the same bits.
    """
    return _reduced([(y, *r)])


def _gathered(ranks: Ranks) -> Array:
    return np.concatenate([y for (y,) in ranks], axis=-1)


@op(lambda y, *, start, total: Type((y.shape[0], total)), exact=True, meets=_gathered)
def gather_columns(y: Array, *, start: int, total: int) -> Array:
    """All-gather: columns of all ranks side by side (T, total). y (T, N) holds those from `start` on."""
    out = np.zeros((len(y), total), np.float32)
    out[:, start : start + y.shape[1]] = y
    return out


@op(lambda x: x, exact=True, meets=lambda ranks: np.array(ranks[0][0]))
def first(x: Array) -> Array:
    """Broadcast: rank 0's x (T) or (T, k), 32 bits each, on every rank. It stands behind discrete choices in
    groups of unlike devices, whose sums round differently, so that all go on with the same tokens.
    """
    return np.array(x)


@op(lambda w, ids, *, first: Type((ids.shape[0], w.shape[-1])), exact=True, weights=slice(1), indexes=(0, 0))
def get_rows_part(w: Array, ids: Array, *, first: int) -> Array:
    """get_rows of a table of which w (V, D) is the part from row `first` on: (T, D), 0 for other ids."""
    own = (ids >= first) & (ids < first + len(w))
    out = np.zeros((len(ids), _rows(w[:1]).shape[-1]), np.float32)
    for t in np.flatnonzero(own):
        out[t] = _rows(w[ids[t] - first])
    return out


def _padded(x: Type, *, before: int, after: int) -> Type:
    *outer, width = x.shape
    if isinstance(width, Dim):
        raise TypeError(f"pad: {x} has no fixed width")
    return Type((*outer, before + width + after))


@op(_padded, row_wise=True, follows=True, exact=True)
def pad(x: Array, *, before: int, after: int) -> Array:
    """x with `before` and `after` zeros around its last dimension: up to the borders of a weight's blocks."""
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(before, after)])
