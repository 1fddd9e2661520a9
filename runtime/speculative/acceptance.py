"""How often draft tokens are accepted: by the evidence for the draft, and by their place in it.

Place i is verified only where all places before it were accepted, so what is learned is a conditional chance;
the chance that a draft is accepted up to i is the product over its places.
"""

from __future__ import annotations

from collections.abc import Sequence

DECAY = 0.98  # of what is known with each new fact: some 50 facts count
LEAST = 0.03  # a chance below which no row is worth its time
WEIGHT = 4.0  # facts that the prior is worth
# Matches of 2, 3, 4 to 5, 6 to 9, 10 tokens and more; a chance to begin with for each of these classes.
BORDERS = (3, 4, 6, 10)
FIRST = (0.2, 0.3, 0.45, 0.7, 0.85)


def evidence(length: int) -> int:
    """The class of a match of so many tokens."""
    return sum(length >= border for border in BORDERS)


class Acceptance:
    """shared: what was learned from others, the prior of one sequence's own numbers. first: chances of a
    draft's first token by class where nothing is known.
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
        """For each place of a draft of `most` tokens, the chance that it and all before it are accepted,
        as far as it is more than nothing.
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
        """The chance of a draft's first token."""
        first = self.first[kind]
        return self.rate(kind, 0, first if self.shared is None else self.shared.rate(kind, 0, first))

    def rate(self, kind: int, place: int, prior: float) -> float:
        """The chance of a place where all before it were accepted; the prior is that of the place before, or
        what others found.
        """
        key = kind, place
        tried = self._tried.get(key)
        return prior if tried is None else (self._accepted[key] + WEIGHT * prior) / (tried + WEIGHT)
