"""Estimates the acceptance rate of draft tokens, by the evidence for the draft and the position within it.

Position i counts only if all positions before it were accepted, so the rates are conditional; the probability
that a draft is accepted up to i is their product.
"""

from __future__ import annotations

from collections.abc import Sequence

DECAY = 0.98  # of the counts, per observation: about 50 observations matter
LEAST = 0.03  # probability below which no row is worth its time
WEIGHT = 4.0  # weight of the prior, in observations
# Evidence classes: matches of 2, 3, 4 to 5, 6 to 9, and 10 or more tokens. Each has an initial rate.
BORDERS = (3, 4, 6, 10)
FIRST = (0.2, 0.3, 0.45, 0.7, 0.85)


def evidence(length: int) -> int:
    """Evidence class of a match of `length` tokens."""
    return sum(length >= border for border in BORDERS)


class Acceptance:
    """Acceptance rates of one source of drafts.

    shared: rates over all sequences, the prior of one sequence's own.
    first: initial rate of a draft's first token, by class.
    """

    def __init__(self, shared: Acceptance | None = None, first: Sequence[float] = FIRST) -> None:
        self.shared, self.first = shared, tuple(first)
        self._accepted: dict[tuple[int, int], float] = {}
        self._tried: dict[tuple[int, int], float] = {}

    def learn(self, kind: int, place: int, accepted: bool) -> None:
        key = kind, place
        self._accepted[key] = DECAY * self._accepted.get(key, 0.0) + accepted
        self._tried[key] = DECAY * self._tried.get(key, 0.0) + 1.0
        if self.shared is not None:
            self.shared.learn(kind, place, accepted)

    def chances(self, kind: int, most: int) -> list[float]:
        """For each position of a draft of `most` tokens: the probability that it and all before it are
        accepted, up to the last that exceeds LEAST.
        """
        found, product, rate = [], 1.0, self.first[kind]
        prior = rate
        for place in range(most):
            if self.shared is not None:
                prior = self.shared.rate(kind, place, prior)
                rate = self.rate(kind, place, prior)
            else:
                rate = self.rate(kind, place, rate)
            product *= rate
            if product < LEAST:
                break
            found.append(product)
        return found

    def first_chance(self, kind: int) -> float:
        """Acceptance rate of a draft's first token."""
        first = self.first[kind]
        return self.rate(kind, 0, first if self.shared is None else self.shared.rate(kind, 0, first))

    def rate(self, kind: int, place: int, prior: float) -> float:
        """Acceptance rate of a position, given that all before it were accepted. The prior is the rate of the
        position before, or the shared one.
        """
        key = kind, place
        tried = self._tried.get(key)
        return prior if tried is None else (self._accepted[key] + WEIGHT * prior) / (tried + WEIGHT)
