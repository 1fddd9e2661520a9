"""Ops of tensor parallelism: the collectives, at which ranks meet, and those on a part of a weight; see the
package.

A collective is defined over the values of all ranks (`meets`, or `scatters` where each rank has another
result); its definition on one rank's values is that of a group of one.

Sequence parallelism divides the rows of a step's T tokens: rank r of N has its own rows, `own_rows(T, r, N)`.
An all-reduce becomes a reduce_scatter, what follows row by row is computed on a rank's own rows alone, and an
all_gather makes it whole again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from satchel.runtime.graph import TOKENS, Array, Dim, Type, own_rows, own_tokens
from satchel.runtime.ops.op import op
from satchel.runtime.ops.op import rows_of as _rows

Ranks = Sequence[tuple[Array, ...]]  # the sources of each rank, in order


def _reduced(of_ranks: Ranks, **_: object) -> Array:
    """The sum of partial values in the order of ranks, then the residual, which is whole."""
    total = np.array(of_ranks[0][0], np.float32)
    for y, *__ in of_ranks[1:]:
        total = total + y
    return np.asarray(total + of_ranks[0][1] if len(of_ranks[0]) > 1 else total, np.float32)


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


def _gathered(of_ranks: Ranks, **_: object) -> Array:
    return np.concatenate([y for (y,) in of_ranks], axis=-1)


@op(lambda y, *, start, total: Type((y.shape[0], total)), exact=True, meets=_gathered)
def gather_columns(y: Array, *, start: int, total: int) -> Array:
    """All-gather: columns of all ranks side by side (T, total). y (T, N) holds those from `start` on."""
    out = np.zeros((len(y), total), np.float32)
    out[:, start : start + y.shape[1]] = y
    return out


@op(lambda x: x, exact=True, meets=lambda of_ranks, **_: np.array(of_ranks[0][0]))
def first(x: Array) -> Array:
    """Broadcast: rank 0's x (T) or (T, k), 32 bits each, on every rank. It stands behind discrete choices in
    groups of unlike devices, whose sums round differently, so that all go on with the same tokens.
    """
    return np.array(x)


def _scattered(of_ranks: Ranks) -> list[Array]:
    """The own rows of each rank of the sum of y; a residual has T rows or the rank's own."""
    total, found = _reduced([(y,) for y, *_ in of_ranks]), []
    for rank, (y, *rest) in enumerate(of_ranks):
        mine = own_rows(len(y), rank, len(of_ranks))
        kept = [r[mine] if len(r) == len(y) else r for r in rest]
        found.append(np.asarray(total[mine] + kept[0] if kept else total[mine], np.float32))
    return found


def _of_own(y: Type, *rest: Type, ranks: int) -> Type:
    own = Type((own_tokens(ranks), *y.shape[1:]))
    if y.shape[0] != TOKENS or len(y.shape) != 2 or len(rest) > 1 or any(r not in (y, own) for r in rest):
        raise TypeError(f"reduce_scatter: {y} and residual {rest}")
    return own


@op(_of_own, scatters=_scattered)
def reduce_scatter(y: Array, *r: Array, ranks: int) -> Array:
    """The sum over ranks of y (T, N), in the order of ranks, plus r: of each rank its own rows. r is optional
    and has T rows, which are whole, or the rank's own.
    """
    return _scattered([(y, *r)])[0]


def of_tokens(x: Type, *_: Type, ranks: int, **__: object) -> Type:
    """Shape rule of a gather: all rows, of a rank's own rows x."""
    if x.shape[0] != own_tokens(ranks) or len(x.shape) != 2:
        raise TypeError(f"all_gather: {x} of {ranks} ranks")
    return Type((TOKENS, *x.shape[1:]))


def _together(of_ranks: Ranks, **_: object) -> Array:
    return np.concatenate([x for (x,) in of_ranks])


@op(of_tokens, meets=_together)
def all_gather(x: Array, *, ranks: int, rounds: int) -> Array:
    """The own rows x of all ranks, one below the other: (T, N). rounds 1: a device may round them to bfloat16
    on the wire, alike for all ranks.
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
