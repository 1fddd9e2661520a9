"""Chooses how many tokens to draft, possibly none, to maximize tokens per second.

All candidate draft tokens of the step's sequences are sorted by probability. Each prefix of that order is a
step with that many additional rows; the best one is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Required speedup, because the prediction is uncertain: GAIN, plus BESIDE for each other sequence, which
# waits
# for the longer step and may gain nothing by it, up to HIGHEST.
GAIN, BESIDE, HIGHEST = 1.1, 0.07, 1.5


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """A sequence that may get draft tokens."""

    chances: Sequence[float]  # per position, the probability that it and all before it are accepted
    seconds: float = 0.0  # to draft one token


def wanted_gain(tokens: int) -> float:
    """Speedup that drafts must promise in a step that gives `tokens` tokens without them."""
    return min(HIGHEST, GAIN + BESIDE * (tokens - 1))


def lengths(
    candidates: Sequence[DraftCandidate],
    tokens: int,
    seconds: Callable[[int], float],
    room: int,
    least: int = 0,
) -> list[int]:
    """Number of draft tokens for each candidate: at most `room` in all, and none or at least `least` each.

    tokens: number of tokens that the step gives without drafts.
    seconds(n): duration of the step with n more rows.
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
