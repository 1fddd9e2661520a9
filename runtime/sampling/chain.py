"""The definition of the sample ops: a row of logits passes the stages of its sampler chain, then a token is
drawn.

Between stages there is a set of candidates in order of rising id. A candidate's distance is its logit minus
the best one's (float32, <= 0). Candidates rank by distance, ties by rising id; a weight is e^distance as an
integer (exact.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from satchel.runtime.graph import Array
from satchel.runtime.sampling.exact import BITS, LN2, exp, lanes, log, power, root, uniform, weights
from satchel.runtime.sampling.options import ORDER

XTC_KEY = 0x9FB21C651E98DF25  # mixed into the seed for XTC's random number
MOST = np.float32(3.4028234663852886e38)
NONE = -1  # no token
MIROSTAT_TOP = 100  # candidates from which mirostat 1 estimates the slope, as in the paper
STAGES = ("end", *ORDER, "mirostat_1", "mirostat_2")
CODE = {name: code for code, name in enumerate(STAGES)}  # SAMPLING_STAGES of sample_stages.k.h


@dataclass(frozen=True, slots=True)
class StageContext:
    """Inputs of a stage besides the candidates."""

    params: Any  # the row's hal_sampling
    numbers: tuple[float, ...]  # of this stage, as SAMPLERS names them; zeros behind them
    ring: Array  # (W), the slot's tokens by position
    pos: int
    dry_penalties: Array  # (n, 2), logit edits of the stage DRY
    vocabulary: int  # number of logits


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates of a row; no logit is NaN or +inf."""

    x: Array  # logits, float32
    ids: Array  # token ids, rising

    @property
    def below(self) -> Array:
        """Distances to the best, <= 0; 0 if all are -inf."""
        best = self.x.max()
        return np.zeros_like(self.x) if best == -np.inf else np.asarray(self.x - best, np.float32)

    def only(self, kept: Array) -> Candidates:
        return Candidates(self.x[kept], self.ids[kept])

    def first(self, count: int) -> Candidates:
        """The `count` best-ranked candidates, at least one."""
        order = np.argsort(-self.below, kind="stable")[: max(1, count)]
        return self.only(np.sort(order))


def crossing(key: Array, weight: Array, goal: float, beyond: bool) -> int:
    """Number of candidates, by rising key, whose weights together reach the goal; beyond: exceed it."""
    total = np.cumsum(weight[np.argsort(key, kind="stable")]).astype(np.float64)
    return min(len(key), int(np.searchsorted(total, goal, side="right" if beyond else "left")) + 1)


def penalized(logits: Array, history: Array, repeat: float, presence: float, frequency: float) -> Array:
    """Logits (V) with repeat, presence and frequency penalties for the tokens of `history`: divided by repeat
    (multiplied if negative), then lowered.
    """
    tokens, counts = np.unique(history, return_counts=True)
    out = logits.astype(np.float32)
    seen = out[tokens]
    with np.errstate(over="ignore"):
        seen = np.where(seen > 0, seen / np.float32(repeat), seen * np.float32(repeat))
        out[tokens] = seen - counts.astype(np.float32) * np.float32(frequency) - np.float32(presence)
    return np.minimum(out, MOST)


def added(x: Array, edits: Array) -> Array:
    """Logits (V) with edits (n, 2) int32 (token, bits of a float32) added one after another."""
    out = x.astype(np.float32)
    with np.errstate(over="ignore"):
        for token, amount in zip(edits[:, 0].tolist(), edits[:, 1].view(np.float32), strict=True):
            out[token] = min(out[token] + amount, MOST)
    return out


# --- stages. Stages that change single tokens skip tokens that an earlier stage dropped.


def _scattered(c: Candidates, row: StageContext, change: Callable[[Array], Array]) -> Candidates:
    """Applies a change of the whole vocabulary's logits to the remaining candidates."""
    whole = np.full(row.vocabulary, -np.inf, np.float32)
    whole[c.ids] = c.x
    return replace(c, x=change(whole)[c.ids])


def penalties(c: Candidates, row: StageContext) -> Candidates:
    """Repeat, presence and frequency penalties for the last tokens; repeat_last_n < 0: all tokens."""
    repeat, presence, frequency, last_n = row.numbers
    reach = min(row.pos + 1, len(row.ring))  # older tokens have been overwritten
    if 0 <= last_n < reach:
        reach = int(last_n)
    history = row.ring[np.arange(row.pos + 1 - reach, row.pos + 1) % len(row.ring)]
    return _scattered(c, row, lambda x: penalized(x, history, repeat, presence, frequency))


def dry(c: Candidates, row: StageContext) -> Candidates:
    return _scattered(c, row, lambda x: added(x, row.dry_penalties))


def top_n_sigma(c: Candidates, row: StageContext) -> Candidates:
    """Keeps logits within n standard deviations of the best (Tang et al., arXiv 2411.07641)."""
    n, *_ = row.numbers
    best, real = c.x.max(), c.x > -np.inf
    if best == -np.inf or n < 0:
        return c
    x, count = np.where(real, c.x, 0).astype(np.float64), float(real.sum())
    mean = lanes(x) / count
    spread = root(lanes(np.where(real, (x - mean) * (x - mean), 0.0)) / count)
    return c.only(c.x.astype(np.float64) >= float(best) - n * spread)


def top_k(c: Candidates, row: StageContext) -> Candidates:
    k, *_ = row.numbers
    return c.first(int(k)) if 0 < k < len(c.x) else c


def _shares(c: Candidates) -> tuple[Array, Array, float, float]:
    """Distances, weights, their sum, and the natural logarithm of that sum relative to the best's weight."""
    below = c.below
    weight = weights(below)
    total = float(weight.sum())
    return below, weight, total, log(total) - BITS * LN2


def _entropy(below: Array, weight: Array, total: float, log_total: float) -> float:
    real = weight > 0
    products = weight.astype(np.float64) * np.where(real, below, 0).astype(np.float64)
    return log_total - lanes(products) / total


def typical(c: Candidates, row: StageContext) -> Candidates:
    """Locally typical sampling: keeps candidates whose negative log-probability is nearest to the entropy, up
    to a probability mass (Meister et al., arXiv 2202.00666).
    """
    mass, *_ = row.numbers
    below, weight, total, log_total = _shares(c)
    entropy = _entropy(below, weight, total, log_total)
    key = np.abs((log_total - below.astype(np.float64)) - entropy).astype(np.float32)
    kept = crossing(key, weight, mass * total, beyond=True)
    return c.only(np.sort(np.argsort(key, kind="stable")[:kept]))


def top_p(c: Candidates, row: StageContext) -> Candidates:
    """Nucleus sampling: keeps the best candidates that together reach a probability mass (Holtzman et al.,
    arXiv 1904.09751).
    """
    mass, *_ = row.numbers
    below, weight, total, _ = _shares(c)
    kept = crossing(-below, weight, mass * total, beyond=False)
    return c.only(np.sort(np.argsort(-below, kind="stable")[:kept]))


def min_p(c: Candidates, row: StageContext) -> Candidates:
    """Keeps candidates with at least a share of the best's probability (Nguyen et al., arXiv 2407.01082)."""
    share, *_ = row.numbers
    return c.only(c.below >= np.float32(log(share))) if share > 0 else c


def xtc(c: Candidates, row: StageContext) -> Candidates:
    """XTC (exclude top choices): with some probability, drops all candidates above a threshold except the
    last-ranked of them.
    """
    probability, threshold, *_ = row.numbers
    below, weight, total, _ = _shares(c)
    drawn = uniform(int(row.params["seed"]) ^ XTC_KEY, row.pos)
    above = np.flatnonzero(weight.astype(np.float64) >= threshold * total)
    if threshold > 0.5 or len(above) < 2 or drawn >= probability:
        return c
    last = above[np.argsort(-below[above], kind="stable")[-1]]
    return c.only(np.setdiff1d(np.arange(len(c.x)), above[above != last]))


def temperature(c: Candidates, row: StageContext) -> Candidates:
    """Distances divided by the temperature, which may depend on the entropy (dynamic temperature); 0 keeps
    the best alone.
    """
    by, spread, exponent, *_ = row.numbers
    if by > 0 and spread > 0 and len(c.x) > 1:
        low, high = max(0.0, by - spread), by + spread
        share = max(0.0, _entropy(*_shares(c)) / log(float(len(c.x))))
        by = low + (high - low) * power(share, exponent)
    if by <= 0:
        return c.first(1)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return replace(c, x=np.where(c.below == 0, np.float32(0), c.below / np.float32(by)))


def mirostat_1(c: Candidates, row: StageContext) -> Candidates:
    """Mirostat: top-k with the k that should give a negative log-probability of mu bits (Basu et al., arXiv
    2007.14966).
    """
    below = -np.sort(-c.below, kind="stable")[:MIROSTAT_TOP].astype(np.float64)
    above = up = 0.0
    for i in range(len(below) - 1):
        t = log((i + 2.0) / (i + 1.0))
        # a neighbour at -inf gives no slope
        b = float(below[i] - below[i + 1]) if below[i + 1] > -np.inf else 0.0
        above += t * b
        up += t * t
    slope = above / up if up > 0 else 1.0
    eps, mu = slope - 1.0, float(row.params["mirostat_mu"])
    bottom = 1.0 - power(float(row.vocabulary), -eps)
    k = eps * exp(mu * LN2) / bottom if bottom != 0 else 1.0
    k = power(k, 1.0 / slope) if slope > 0 else float(len(c.x))
    return c.first(int(min(max(k, 1.0), float(len(c.x)))))


def mirostat_2(c: Candidates, row: StageContext) -> Candidates:
    """Mirostat 2: keeps candidates whose negative log2-probability is at most mu."""
    below, _, _, log_total = _shares(c)
    kept = log_total - below.astype(np.float64) <= float(row.params["mirostat_mu"]) * LN2
    return c.only(kept) if kept.any() else c.first(1)


STAGE: dict[int, Callable[[Candidates, StageContext], Candidates]] = {
    code: globals()[name] for name, code in CODE.items() if name != "end"
}


def draw(c: Candidates, row: StageContext) -> tuple[int, float]:
    """Draws a token by weight; gives it and its nll_bits, -log2 of its probability among the candidates."""
    below, weight, total, log_total = _shares(c)
    goal = uniform(int(row.params["seed"]), row.pos) * total
    order = np.argsort(-below, kind="stable")
    at = order[crossing(-below, weight, goal, beyond=True) - 1]
    return int(c.ids[at]), (log_total - float(below[at])) / LN2


def lost(logits: Array) -> bool:
    """Whether a row of logits (V) is invalid: one is NaN or +inf, or all are -inf."""
    return not np.isfinite(logits.max())


def sample_row(
    logits: Array,
    ring: Array,
    pos: int,
    params: Any,
    bitmask: Array | None = None,
    edits: Array | None = None,
) -> tuple[int, float]:
    """The token that a row's chain draws, and its nll_bits. NONE and 0 if the logits are lost, or if bitmask
    and edits leave none above -inf.

    logits: (V) float32.
    ring: (W), the slot's tokens by position.
    pos: position of the last token.
    params: one hal_sampling record.
    bitmask: (V / 32) uint32, token bitmask, read if params["masked"].
    edits: (E, 2), additions to logits: the first params["biases"] apply at once, the next
    params["dry_penalties"] in the stage "dry".
    """
    if lost(logits):
        return NONE, 0.0
    x = logits.astype(np.float32)
    none = np.zeros((0, 2), np.int32)
    n_bias, n_dry = int(params["biases"]), int(params["dry_penalties"])
    given = none if edits is None else edits
    x = added(x, given[:n_bias])
    if bitmask is not None and params["masked"]:
        allowed = np.unpackbits(np.ascontiguousarray(bitmask).view(np.uint8), bitorder="little")[: len(x)]
        x = np.where(allowed == 1, x, -np.inf).astype(np.float32)
    if x.max() == -np.inf:
        return NONE, 0.0
    row = StageContext(params, (), ring, int(pos), given[n_bias : n_bias + n_dry], len(x))
    c = Candidates(x, np.arange(len(x)))
    for entry in params["chain"]:
        code = int(entry["stage"])
        if code == CODE["end"]:
            break
        c = STAGE[code](c, replace(row, numbers=tuple(entry["numbers"].tolist())))
    return draw(c, row)
