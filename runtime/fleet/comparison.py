"""Whether a new version of a model answers as the one that serves: judged on requests that both computed, by
how far their next-token distributions diverge, and how often both find the same token likeliest.

Invariants:

- A request is one observation, because its tokens depend on each other. One that the new version fails counts
  as one with which it agrees nowhere.
- A verdict is given only where a confidence interval lies on one side of its limit. There is a look at each
  doubling of the number of requests, and each has half of the error that those before left of `ERROR`, so
  that many looks are no more likely to be wrong than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from statistics import NormalDist, fmean, stdev
from typing import Literal, NamedTuple

from satchel.errors import RequestError
from satchel.runtime.sampling.logprobs import Logprob

ERROR = 0.05  # how likely a verdict may be wrong, over all looks
WORST = 10.0  # nats: most divergence that a token counts, and that of a failed request
LEAST = 8  # requests before an interval means anything
SMALL = 1e-9  # probability below which none is told apart
PROMOTE, TAKE_BACK = "promote", "take back"


class Observation(NamedTuple):
    """A request that both versions computed."""

    divergence: float  # nats a token, the mean over its answer
    agreement: float  # share of the answer's tokens before which both find the same token likeliest


FAILED = Observation(WORST, 0.0)


class Interval(NamedTuple):
    """A mean, and a confidence interval around it."""

    mean: float
    low: float
    high: float


class VersionLimits(NamedTuple):
    """What a new version must keep to."""

    most_divergence: float = 0.1  # nats a token
    least_agreement: float = 0.9  # share of tokens
    least: int = 32  # requests before the first look
    most: int = 4096  # requests after which a version that has not been found good is taken back


class VersionVerdict(NamedTuple):
    decision: Literal["promote", "take back"]
    requests: int
    divergence: Interval
    agreement: Interval


def divergence(served: Logprob, new: Logprob) -> float:
    """Kullback-Leibler divergence of the new version's next token from the served one's, in nats. All tokens
    that are not among the served one's likeliest are one. A likeliest one that the new version does not list
    has the most that its list leaves.
    """
    other = {token: exp(q) for token, q in new.top}
    unlisted = max(0.0, min([*other.values(), 1 - sum(other.values())]))
    pairs = [(exp(p), other.get(token, unlisted)) for token, p in served.top]
    pairs.append((1 - sum(p for p, _ in pairs), 1 - sum(q for _, q in pairs)))
    found = sum(p * log(p / max(q, SMALL)) for p, q in pairs if p > SMALL)
    return min(max(0.0, found), WORST)


def observe(served: Sequence[Logprob], new: Sequence[Logprob]) -> Observation:
    """Of the same tokens, computed by both. Raises RequestError for none, or another number of tokens."""
    if not served or len(served) != len(new):
        raise RequestError(f"expected reports of the same tokens, got {len(served)} and {len(new)}")
    pairs = list(zip(served, new, strict=True))
    same = [bool(a.top and b.top) and a.top[0][0] == b.top[0][0] for a, b in pairs]
    return Observation(fmean(divergence(a, b) for a, b in pairs), fmean(same))


class Comparison:
    """Observations of one new version, and what follows from them."""

    def __init__(self, bounds: VersionLimits) -> None:
        if not LEAST <= bounds.least <= bounds.most:
            raise RequestError(
                f"expected {LEAST} requests before the first look and no more than {bounds.most}, got"
                f" {bounds.least}"
            )
        self._bounds, self._seen = bounds, list[Observation]()
        self._next, self._error = bounds.least, ERROR / 2

    @property
    def requests(self) -> int:
        return len(self._seen)

    def add(self, seen: Observation) -> VersionVerdict | None:
        """Counts a request; a verdict where there is one now."""
        self._seen.append(seen)
        count = len(self._seen)
        if count < min(self._next, self._bounds.most):
            return None
        far, near = self.intervals(self._error)
        self._next, self._error = 2 * self._next, self._error / 2
        bounds = self._bounds
        if far.high <= bounds.most_divergence and near.low >= bounds.least_agreement:
            return VersionVerdict("promote", count, far, near)
        if far.low > bounds.most_divergence or near.high < bounds.least_agreement or count >= bounds.most:
            return VersionVerdict("take back", count, far, near)
        return None

    def intervals(self, error: float = ERROR) -> tuple[Interval, Interval]:
        """Of the divergence and of the agreement, each wrong with half of this probability."""
        agreed = [seen.agreement for seen in self._seen]
        far = interval([seen.divergence for seen in self._seen], error / 2)
        near = interval(agreed, error / 2)
        # Without a difference in so many requests, one in as many may still differ.
        rare = log(2 / error) / max(1, len(agreed))
        low, high = min(near.low, near.mean - rare), max(near.high, near.mean + rare)
        return far._replace(low=max(0.0, far.low)), Interval(near.mean, max(0.0, low), min(1.0, high))


def interval(numbers: Sequence[float], error: float) -> Interval:
    """The mean, with Student's interval that lacks the true one with probability `error`."""
    if len(numbers) < 2:
        mean = fmean(numbers) if numbers else 0.0
        return Interval(mean, float("-inf"), float("inf"))
    mean, half = fmean(numbers), student(1 - error / 2, len(numbers) - 1)
    half *= stdev(numbers) / sqrt(len(numbers))
    return Interval(mean, mean - half, mean + half)


def student(share: float, freedom: int) -> float:
    """Quantile of Student's t distribution, by Hill's expansion around the normal one: three digits from 7
    degrees of freedom on.
    """
    z = NormalDist().inv_cdf(share)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
