"""Pages of the states of layers that keep one instead of keys and values: the page of a block holds the state
as the last computed token of that block left it, so that of a full block is a checkpoint at the block's end.

A slot has the page that it goes on from and the last checkpoint before it. Of a prompt's other blocks those
get a page whose end is marked; the places of the rest hold GONE, and no step writes there.

Before draft tokens are computed, the state that the slot has is put aside, for a state cannot be made to
forget a token: after a rejected draft token the slot goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable

from satchel.runtime.kv.group import GONE, BlockGroup
from satchel.runtime.layers.arch import RECURRENT, Cache


class StateGroup(BlockGroup):
    """The group of all layers with a state."""

    def __init__(self, cache: Cache) -> None:
        super().__init__(cache, RECURRENT)
        self._computed = [0] * cache.slots
        self._marks: list[frozenset[int]] = [frozenset()] * cache.slots
        # Of slots: a number of positions, and the page of the state after them.
        self._aside: dict[int, tuple[int, int]] = {}

    def mark(self, slot: int, borders: Iterable[int]) -> None:
        """Checkpoints are kept after so many blocks: where others, or this text grown, may go on."""
        self._marks[slot] = frozenset(borders)

    def note_computed(self, slot: int, length: int) -> None:
        self._computed[slot] = length

    def wanted(self, slot: int, length: int) -> list[bool]:
        last = -(-length // self.block)
        return [place in (*self._marks[slot], last) for place in range(self.end[slot] + 1, last + 1)]

    def give_back(self, slot: int, position: int) -> None:
        """Lets go of what stands before the last checkpoint; going back further, all is computed again."""
        keep = min(max(0, position // self.block - 1), self.end[slot])
        while self.first[slot] < keep:
            self._drop(slot, self.first[slot])
            self.table[slot, self.first[slot]] = GONE
            self.first[slot] += 1

    def keep(self, slot: int) -> tuple[int, int] | None:
        """Puts the slot's state aside: (old, new) pages, where its next token overwrites the old one and so
        the caller must copy it to the new one, which the pool has.
        """
        self._forget(slot)
        length = self._computed[slot]
        page = int(self.table[slot, (length - 1) // self.block]) if length else GONE
        if page == GONE:
            return None
        if length % self.block == 0:
            self.pool.hold(page)
            self._aside[slot] = length, page
            return None
        new = self.pool.take()
        self._aside[slot] = length, new
        return page, new

    def ends(self, slot: int, length: int) -> list[int]:
        borders = {place * self.block for place in range(self.first[slot] + 1, self.end[slot] + 1)}
        there = {length, *borders, self._aside.get(slot, (0, 0))[0]}
        return sorted((n for n in there if n <= length and self.holds(slot, n)), reverse=True)

    def holds(self, slot: int, length: int) -> bool:
        """Whether the state after `length` positions is there."""
        if length in (0, self._computed[slot]) or length == self._aside.get(slot, (0, 0))[0]:
            return True
        place = length // self.block - 1
        whole = length % self.block == 0 and self.first[slot] <= place < self.end[slot]
        return bool(whole and self.table[slot, place] != GONE)

    def begin(self, slot: int, first: int, blocks: list[int]) -> None:
        super().begin(slot, first, blocks)
        self._computed[slot] = self.end[slot] * self.block

    def cut(self, slot: int, length: int) -> None:
        super().cut(slot, length)
        kept = self._aside.get(slot, (0, 0))[0]
        if 0 < length == kept < self._computed[slot]:
            self._put_back(slot)
        elif length < kept:
            self._forget(slot)
        self._computed[slot] = min(self._computed[slot], length)

    def count(self) -> list[int]:
        counted = super().count()
        for _, page in self._aside.values():
            counted[page] += 1
        return counted

    def _put_back(self, slot: int) -> None:
        """The state that was put aside becomes the slot's, in the place of what came after it."""
        length, page = self._aside.pop(slot)
        place = (length - 1) // self.block
        if place >= self.first[slot]:
            self._drop(slot, place)
        self.table[slot, place] = page
        self.first[slot] = min(self.first[slot], place)

    def _forget(self, slot: int) -> None:
        """Lets go of what was put aside."""
        if slot in self._aside:
            self.pool.drop(self._aside.pop(slot)[1])
