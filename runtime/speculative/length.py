"""How many tokens to draft: as many as make tokens per second most, which may be none.

The tokens that drafts may add to a step are ordered by their chance, over all its sequences; each beginning
of that order is a step with so many rows, of which the best is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Drafts must promise so much more than none, for what is promised is never certain; and more for each other
# sequence, which waits for the longer step and may gain nothing by it.
GAIN, BESIDE, HIGHEST = 1.1, 0.07, 1.5


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """chances: for each place of a draft, that it and all before it are accepted. seconds: what drafting
    one token takes.
    """

    chances: Sequence[float]
    seconds: float = 0.0


def wanted_gain(tokens: int) -> float:
    """Tokens per second, over those without drafts, that a step of so many sequences must promise."""
    return min(HIGHEST, GAIN + BESIDE * (tokens - 1))


def lengths(
    candidates: Sequence[DraftCandidate],
    tokens: int,
    seconds: Callable[[int], float],
    room: int,
    least: int = 0,
) -> list[int]:
    """Tokens to draft for each candidate, in all at most `room`, for each none or at least `least`.

    tokens: those that the step gives without drafts; seconds(n): what it takes with n rows more.
    """
    order = sorted(
        ((-chance, i, c.seconds) for i, c in enumerate(candidates) for chance in c.chances),
        key=lambda row: row[:2],
    )
    best, chosen = wanted_gain(tokens) * tokens / max(seconds(0), 1e-9), 0
    expected, drafting = float(tokens), 0.0
    for n, (chance, _, cost) in enumerate(order[:room], 1):
        expected, drafting = expected - chance, drafting + cost
        rate = expected / max(seconds(n) + drafting, 1e-9)
        if rate > best:
            best, chosen = rate, n
    found = [0] * len(candidates)
    for _, i, _ in order[:chosen]:
        found[i] += 1
    return [n if n >= least else 0 for n in found]
