"""The ops about rows, tokens and sampling; see ops.py."""

from __future__ import annotations

import numpy as np

from satchel.runtime.graph import Array, Type
from satchel.runtime.ops.op import op
from satchel.runtime.ops.op import same as _same


@op(lambda x, rows: Type((rows.shape[0], *x.shape[1:]), x.format), exact=True, indexes=(0, 0))
def gather_rows(x: Array, rows: Array) -> Array:
    """x (T, ...) gathered at the indices rows (R): (R, ...)."""
    return np.asarray(x[rows])


@op(_same, alias=True, exact=True)
def tokens_put(ring: Array, ids: Array, slot: Array, pos: Array, *, shift: int = 0) -> Array:
    """Notes the token ids in the slots' token table (S, W) at pos + shift; a negative id notes nothing."""
    out = ring.copy()
    known = ids >= 0
    out[slot[known], (pos[known] + shift) % ring.shape[1]] = ids[known]
    return out


@op(lambda ring, slot, pos: Type(pos.shape, "i32"), exact=True)
def tokens_get(ring: Array, slot: Array, pos: Array) -> Array:
    """The tokens (T) that stand in the table at these positions: what the last step sampled needs no way
    through the host.
    """
    return np.asarray(ring[slot, pos % ring.shape[1]])


@op(lambda logits, *_: Type((logits.shape[0],), "i32"), exact=True)
def sample(logits: Array, ring: Array, slot: Array, pos: Array, params: Array) -> Array:
    """One token id per row of logits (R, V), by the row's hal_sampling, -1 where there is none; see
    runtime/sampling/chain.py for the definition.
    """
    from satchel.runtime.sampling import sample_row

    rows = zip(logits, ring[slot], pos, params, strict=True)
    return np.array([sample_row(*row)[0] for row in rows], np.int32)


@op(lambda logits, *_: Type((logits.shape[0], 2), "i32"), waits=True)
def sample_masked(
    logits: Array, ring: Array, slot: Array, pos: Array, params: Array, bitmask: Array, edits: Array
) -> Array:
    """As sample, after logit edits (R, E, 2) and under a token bitmask (R, V / 32): (R, 2), the token and its
    nll_bits as the bits of a float32.
    """
    from satchel.runtime.sampling import sample_row

    rows = zip(logits, ring[slot], pos, params, bitmask, edits, strict=True)
    found = [sample_row(*row) for row in rows]
    nll_bits = np.array([bits for _, bits in found], np.float32).view(np.int32)
    return np.stack((np.array([token for token, _ in found], np.int32), nll_bits), axis=-1)


@op(lambda logits, ids, *_, k: Type((logits.shape[0], 2 + 2 * k)))
def logprobs(logits: Array, ids: Array, *params: Array, k: int) -> Array:
    """How likely the ids (R) were by the logits (R, V): (R, 2 + 2 k): the logarithm of its probability, how
    many tokens were likelier, the k largest logarithms, their tokens. Rows whose hal_sampling asks for no
    report give zeros, and rows of logits that are lost NaN.
    """
    from satchel.runtime.sampling.logprobs import logprob_row

    asked = params[0]["report"] if params else np.ones(len(ids))
    found = [
        logprob_row(x, int(i), k) if a else np.zeros(2 + 2 * k)
        for x, i, a in zip(logits, ids, asked, strict=True)
    ]
    return np.array(found, np.float32).reshape(len(ids), 2 + 2 * k)
