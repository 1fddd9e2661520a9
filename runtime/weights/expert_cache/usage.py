"""Counts which experts tokens are routed to, and says which to replace: by statistics, with room for chance.

Counts fade: a token counts e times less after HORIZON others. A cached expert gives way only to one that
was used more by so much that chance alone would seldom have done it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from satchel.runtime.graph import Array

HORIZON = 1024.0  # tokens
DEVIATIONS = 4.0  # standard deviations of a difference of counts: of many pairs the widest is looked at


class Replacement(NamedTuple):
    """An expert that is to take a place, and the one that gives it up, -1: nobody has it. gain: picks."""

    slot: int
    expert: int
    before: int
    gain: float


class ExpertUsage:
    """Of one layer: counts of its experts, and which place each has, -1: none."""

    def __init__(self, experts: int, places: int) -> None:
        self.counts = np.zeros(experts)
        self.slots = np.full(experts, -1, np.int32)
        self.holders = np.full(places, -1, np.int32)  # by place, the expert that has it or will have it
        self.lookups = self.hits = 0

    def add(self, ids: Array) -> None:
        """A step's picks (T, k)."""
        flat = ids.reshape(-1)
        self.counts *= np.exp(-len(ids) / HORIZON)
        self.counts += np.bincount(flat, minlength=len(self.counts))
        self.lookups += len(flat)
        self.hits += int(np.count_nonzero(self.slots[flat] >= 0))

    def favourites(self, count: int) -> list[int]:
        """The most used, best first; of equals the lower number."""
        return [int(i) for i in np.argsort(-self.counts, kind="stable")[:count]]

    def swap(self) -> Replacement | None:
        """The change that gains most, if there is one that is no chance."""
        outside = np.ones(len(self.counts), bool)
        outside[self.holders[self.holders >= 0]] = False
        if not outside.any():
            return None
        expert = int(np.where(outside, self.counts, -1.0).argmax())
        free = np.flatnonzero(self.holders < 0)
        if len(free):
            return Replacement(int(free[0]), expert, -1, float(self.counts[expert]))
        slot = int(self.counts[self.holders].argmin())
        mine, other = self.counts[expert], self.counts[self.holders[slot]]
        if mine - other <= DEVIATIONS * np.sqrt(mine + other):
            return None
        return Replacement(slot, expert, int(self.holders[slot]), float(mine - other))
