"""Log-probability report of a sampled or given token: from the model's logits before the sampler chain, with
the token's rank and the top tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from satchel.runtime.graph import Array
from satchel.runtime.sampling.chain import NONE, Candidates, lost
from satchel.runtime.sampling.exact import BITS, LN2, log, weights

TOP = 20  # most of the likeliest tokens in a report


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability report of a token."""

    token: int
    logprob: float  # natural logarithm
    rank: int  # number of likelier tokens
    top: tuple[tuple[int, float], ...] = ()  # (token, log-probability), best first


def logprob_row(logits: Array, token: int, k: int) -> Array:
    """A row of the op `logprobs`: (2 + 2 k) float64. All NaN for lost logits and for the token NONE."""
    if token == NONE or lost(logits):
        return np.full(2 + 2 * k, np.nan)
    x = logits.astype(np.float32)
    below = Candidates(x, np.arange(len(x))).below
    log_total = log(float(weights(below).sum())) - BITS * LN2
    best = np.argsort(-below, kind="stable")[:k]
    of = below.astype(np.float64) - log_total
    return np.concatenate(([of[token], (below > below[token]).sum()], of[best], best))


def read_logprob(row: Array, token: int, k: int) -> Logprob:
    """Decodes a row of the op's result, with the first k top tokens."""
    width = (len(row) - 2) // 2
    ids, values = row[2 + width : 2 + width + k].astype(int).tolist(), row[2 : 2 + k].tolist()
    return Logprob(token, float(row[0]), int(row[1]), tuple(zip(ids, values, strict=True)))
