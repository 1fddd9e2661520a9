"""Blocks of the layers that share a window: a pool of their own, and a block table of which block holds which
positions of which slot. Blocks wholly behind the window are freed; their table entries hold GONE (-1).
"""

from __future__ import annotations

import numpy as np

from satchel.runtime.kv.pool import BlockPool
from satchel.runtime.layers.arch import RECURRENT, REWIND, Cache, table_name

GONE = -1


def first_needed(window: int, position: int, block: int) -> int:
    """First block that the token at `position` needs; for recurrent states, the block of the
    position before.
    """
    if window == RECURRENT:
        return max(0, position - 1) // block
    return max(0, position - window + 1) // block if window else 0


class BlockGroup:
    """Blocks of one group of layers.

    window: positions that a token attends to, its own included; 0: all.
    table: (slots, most blocks of a slot), block numbers or GONE.
    first, end: range of each slot's entries that are in use.
    """

    def __init__(self, cache: Cache, window: int) -> None:
        self.window, self.name, self.block = window, table_name(window), cache.block
        self.table = np.zeros((cache.slots, cache.table_width), np.int32)
        self.pool = BlockPool(cache.pool_of(window))
        self.first, self.end = [0] * cache.slots, [0] * cache.slots

    def blocks(self, slot: int) -> list[int]:
        """The slot's blocks in order; GONE for freed ones."""
        return [int(b) for b in self.table[slot, : self.end[slot]]]

    def needed(self, position: int) -> int:
        """First block that the token at `position` needs."""
        return first_needed(self.window, position, self.block)

    def wanted(self, slot: int, length: int) -> list[bool]:
        """For each missing table entry of the slot up to `length` positions, whether it gets a block."""
        return [True] * self.missing(slot, length)

    def settled(self, slot: int, start: int, end: int) -> bool:
        """Whether the slot's blocks stay as they are when positions start .. end - 1 are computed."""
        return end <= self.end[slot] * self.block and self.needed(max(0, start - REWIND)) <= self.first[slot]

    def note_computed(self, slot: int, length: int) -> None:
        """Called before positions up to `length` of the slot are computed."""

    def missing(self, slot: int, length: int) -> int:
        """Blocks that the slot must still get to hold `length` positions."""
        return max(0, -(-length // self.block) - self.end[slot])

    def append(self, slot: int, block: int) -> None:
        self.table[slot, self.end[slot]] = block
        self.end[slot] += 1

    def begin(self, slot: int, first: int, blocks: list[int]) -> None:
        """Gives an empty slot shared blocks to read, which fill its table entries from `first` on."""
        self.table[slot, :first] = GONE
        self.first[slot] = self.end[slot] = first
        for block in blocks:
            if block != GONE:
                self.pool.hold(block)
            self.append(slot, block)

    def give_back(self, slot: int, position: int) -> None:
        """Drops blocks that no token from `position` on attends to, not even after a rewind."""
        keep = min(self.needed(max(0, position - REWIND)), self.end[slot])
        while self.first[slot] < keep:
            self._drop(slot, self.first[slot])
            self.table[slot, self.first[slot]] = GONE
            self.first[slot] += 1

    def ends(self, slot: int, length: int) -> list[int]:
        """Candidate lengths, up to `length` and largest first, to which the slot may be rewound if every
        group holds() them.
        """
        return [length]

    def holds(self, slot: int, length: int) -> bool:
        """Whether the slot still has everything that the token after `length` positions attends to."""
        return self.needed(length) >= self.first[slot]

    def cut(self, slot: int, length: int) -> None:
        """Drops all blocks past `length` positions."""
        keep = -(-length // self.block)
        while self.end[slot] > keep:
            self.end[slot] -= 1
            if self.end[slot] >= self.first[slot]:
                self._drop(slot, self.end[slot])
        self.first[slot] = min(self.first[slot], keep)

    def shared(self, slot: int, length: int) -> bool:
        """Whether the block of position `length` exists and has other holders."""
        place = length // self.block
        inside = length % self.block and self.first[slot] <= place < self.end[slot]
        return bool(inside) and self.pool.holders[int(self.table[slot, place])] > 1

    def exchange(self, slot: int, place: int) -> tuple[int, int]:
        """Copy on write: replaces a shared block with a new one, and gives (old, new). The pool must have a
        free block.
        """
        old, new = int(self.table[slot, place]), self.pool.take()
        self.pool.drop(old)
        self.table[slot, place] = new
        return old, new

    def count(self) -> list[int]:
        """Number of slots that hold each block of the pool."""
        counted = [0] * self.pool.size
        for slot, (first, end) in enumerate(zip(self.first, self.end, strict=True)):
            for block in self.table[slot, first:end]:
                if block != GONE:
                    counted[int(block)] += 1
        return counted

    def _drop(self, slot: int, place: int) -> None:
        if self.table[slot, place] != GONE:
            self.pool.drop(int(self.table[slot, place]))
