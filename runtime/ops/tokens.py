"""Ops on rows, tokens and sampling; see the package."""

from __future__ import annotations

import numpy as np

from satchel.runtime.graph import Array, Type
from satchel.runtime.ops import split
from satchel.runtime.ops.op import op
from satchel.runtime.ops.op import same as _same


@op(
    lambda x, rows: Type((rows.shape[0], *x.shape[1:]), x.format),
    exact=True,
    indexes=(0, 0),
    split=split.rows_gathered,
)
def gather_rows(x: Array, rows: Array) -> Array:
    """x[rows] of x (T, ...) and indices rows (R): (R, ...)."""
    return np.asarray(x[rows])


@op(lambda ids, table: Type(ids.shape, table.format), row_wise=True, exact=True, indexes=(1, 0))
def gather(ids: Array, table: Array) -> Array:
    """Numbers of a table (N), int32 or float32, at ids (T, k): (T, k)."""
    return np.asarray(table[ids])


@op(_same, alias=True, exact=True)
def tokens_put(ring: Array, ids: Array, slot: Array, pos: Array, *, shift: int = 0) -> Array:
    """Writes token ids to the token table (S, W) of their slots at pos + shift. Negative ids are skipped."""
    out = ring.copy()
    known = ids >= 0
    out[slot[known], (pos[known] + shift) % ring.shape[1]] = ids[known]
    return out


@op(lambda ring, slot, pos: Type(pos.shape, "i32"), exact=True)
def tokens_get(ring: Array, slot: Array, pos: Array) -> Array:
    """Tokens (T) of the token table at these slots and positions. A step can read the tokens of the step
    before it without the host.
    """
    return np.asarray(ring[slot, pos % ring.shape[1]])


@op(
    lambda logits, *_: Type((logits.shape[0],), "i32"), exact=True, discrete=True, split=split.logits_gathered
)
def sample(logits: Array, ring: Array, slot: Array, pos: Array, params: Array) -> Array:
    """Sampled token id per row of logits (R, V), with the row's hal_sampling; -1 if no token can be sampled.
    Defined in runtime/sampling/chain.py.
    """
    from satchel.runtime.sampling import sample_row

    rows = zip(logits, ring[slot], pos, params, strict=True)
    return np.array([sample_row(*row)[0] for row in rows], np.int32)


@op(
    lambda logits, *_: Type((logits.shape[0], 2), "i32"),
    waits=True,
    discrete=True,
    split=split.logits_gathered,
)
def sample_masked(
    logits: Array, ring: Array, slot: Array, pos: Array, params: Array, bitmask: Array, edits: Array
) -> Array:
    """As sample, after logit edits (R, E, 2) and under a token bitmask (R, V / 32): (R, 2), the token id and
    its negative log-probability in bits (nll_bits), stored as the bits of a float32.
    """
    from satchel.runtime.sampling import sample_row

    rows = zip(logits, ring[slot], pos, params, bitmask, edits, strict=True)
    found = [sample_row(*row) for row in rows]
    nll_bits = np.array([bits for _, bits in found], np.float32).view(np.int32)
    return np.stack((np.array([token for token, _ in found], np.int32), nll_bits), axis=-1)


@op(lambda logits, ids, *_, k: Type((logits.shape[0], 2 + 2 * k)), split=split.logits_gathered)
def logprobs(logits: Array, ids: Array, *params: Array, k: int) -> Array:
    """Log-probabilities of ids (R) under logits (R, V), as (R, 2 + 2 k): the id's log-probability, its rank,
    the k largest log-probabilities, their token ids.

    A row is zero if its hal_sampling requests no report, and NaN if its logits are lost.
    """
    from satchel.runtime.sampling.logprobs import logprob_row

    asked = params[0]["report"] if params else np.ones(len(ids))
    found = [
        logprob_row(x, int(i), k) if a else np.zeros(2 + 2 * k)
        for x, i, a in zip(logits, ids, asked, strict=True)
    ]
    return np.array(found, np.float32).reshape(len(ids), 2 + 2 * k)
