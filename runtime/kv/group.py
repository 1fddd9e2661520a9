"""The blocks of the layers that look equally far back: a pool of their own, and a table that says which block
holds which positions of which slot. Blocks wholly behind the window are given back; their places hold -1.
"""

from __future__ import annotations

import numpy as np

from satchel.runtime.kv.pool import BlockPool
from satchel.runtime.layers.arch import RECURRENT, REWIND, Cache, table_name

GONE = -1


def first_needed(window: int, position: int, block: int) -> int:
    """The first block that the token at a position needs: of a state, the one of the position before."""
    if window == RECURRENT:
        return max(0, position - 1) // block
    return max(0, position - window + 1) // block if window else 0


class BlockGroup:
    """window: positions that a token sees, its own among them; 0: all of them.

    table: (slots, blocks a slot may have). first, end: of each slot, which of its blocks are there.
    """

    def __init__(self, cache: Cache, window: int) -> None:
        self.window, self.name, self.block = window, table_name(window), cache.block
        self.table = np.zeros((cache.slots, cache.table_width), np.int32)
        self.pool = BlockPool(cache.pool_of(window))
        self.first, self.end = [0] * cache.slots, [0] * cache.slots

    def blocks(self, slot: int) -> list[int]:
        """The slot's blocks in order, GONE for those that were given back."""
        return [int(b) for b in self.table[slot, : self.end[slot]]]

    def needed(self, position: int) -> int:
        """The first block that the token at a position needs."""
        return first_needed(self.window, position, self.block)

    def wanted(self, slot: int, length: int) -> list[bool]:
        """For each missing table entry of the slot up to `length` positions, whether it gets a block."""
        return [True] * self.missing(slot, length)

    def note_computed(self, slot: int, length: int) -> None:
        """The slot is to have so many positions."""

    def missing(self, slot: int, length: int) -> int:
        """Blocks that the slot needs besides its own for `length` positions."""
        return max(0, -(-length // self.block) - self.end[slot])

    def append(self, slot: int, block: int) -> None:
        self.table[slot, self.end[slot]] = block
        self.end[slot] += 1

    def begin(self, slot: int, first: int, blocks: list[int]) -> None:
        """Lets an empty slot read blocks of others, which hold its places from `first` on."""
        self.table[slot, :first] = GONE
        self.first[slot] = self.end[slot] = first
        for block in blocks:
            if block != GONE:
                self.pool.hold(block)
            self.append(slot, block)

    def give_back(self, slot: int, position: int) -> None:
        """Lets go of blocks that no token from `position` on sees, nor one that comes after going back."""
        keep = min(self.needed(max(0, position - REWIND)), self.end[slot])
        while self.first[slot] < keep:
            self._drop(slot, self.first[slot])
            self.table[slot, self.first[slot]] = GONE
            self.first[slot] += 1

    def ends(self, slot: int, length: int) -> list[int]:
        """Numbers of positions, `length` at most and the largest first, to which the slot may go back where
        every group holds() them.
        """
        return [length]

    def holds(self, slot: int, length: int) -> bool:
        """Whether all is there that the token after `length` positions sees."""
        return self.needed(length) >= self.first[slot]

    def cut(self, slot: int, length: int) -> None:
        """Lets go of all blocks behind `length` positions."""
        keep = -(-length // self.block)
        while self.end[slot] > keep:
            self.end[slot] -= 1
            if self.end[slot] >= self.first[slot]:
                self._drop(slot, self.end[slot])
        self.first[slot] = min(self.first[slot], keep)

    def shared(self, slot: int, length: int) -> bool:
        """Whether the block that position `length` goes into is there and has other holders."""
        place = length // self.block
        inside = length % self.block and self.first[slot] <= place < self.end[slot]
        return bool(inside) and self.pool.holders[int(self.table[slot, place])] > 1

    def exchange(self, slot: int, place: int) -> tuple[int, int]:
        """A block of its own for one that others hold too: (old, new). The pool has one."""
        old, new = int(self.table[slot, place]), self.pool.take()
        self.pool.drop(old)
        self.table[slot, place] = new
        return old, new

    def count(self) -> list[int]:
        """How many slots hold each block of the pool."""
        counted = [0] * self.pool.size
        for slot, (first, end) in enumerate(zip(self.first, self.end, strict=True)):
            for block in self.table[slot, first:end]:
                if block != GONE:
                    counted[int(block)] += 1
        return counted

    def _drop(self, slot: int, place: int) -> None:
        if self.table[slot, place] != GONE:
            self.pool.drop(int(self.table[slot, place]))
