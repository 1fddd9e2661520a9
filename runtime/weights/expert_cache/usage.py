"""Counts which experts tokens are routed to, and decides by a significance test which to replace.

Counts decay: by a factor e per HORIZON tokens. A cached expert is replaced only if the other was selected
significantly more often.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from satchel.runtime.graph import Array

HORIZON = 1024.0  # time constant of the decay, in tokens
# Threshold in standard deviations of a difference of counts; high, because the largest of many is tested.
DEVIATIONS = 4.0


class Replacement(NamedTuple):
    """An expert that takes a slot."""

    slot: int
    expert: int
    before: int  # the expert that leaves it; -1: none
    gain: float  # selections


class ExpertUsage:
    """Decayed counts of one layer's experts, and the slot of each, -1: none."""

    def __init__(self, experts: int, places: int) -> None:
        self.counts = np.zeros(experts)
        self.slots = np.full(experts, -1, np.int32)
        self.holders = np.full(places, -1, np.int32)  # by slot, the expert that has it or will have it
        self.lookups = self.hits = 0

    def add(self, ids: Array) -> None:
        """Counts the selections (T, k) of a step."""
        flat = ids.reshape(-1)
        self.counts *= np.exp(-len(ids) / HORIZON)
        self.counts += np.bincount(flat, minlength=len(self.counts))
        self.lookups += len(flat)
        self.hits += int(np.count_nonzero(self.slots[flat] >= 0))

    def favourites(self, count: int) -> list[int]:
        """The `count` most used experts, best first; ties go to the lower id."""
        return [int(i) for i in np.argsort(-self.counts, kind="stable")[:count]]

    def swap(self) -> Replacement | None:
        """The replacement with the largest gain, if one is significant."""
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
