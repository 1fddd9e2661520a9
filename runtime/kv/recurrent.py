"""Pages of recurrent states. The page of a block holds the state after the block's last computed token, so
the page of a full block is a checkpoint at its end.

A slot has the page that it continues from and the last checkpoint before it. Of a prompt's other blocks, only
marked ones get a page; the table entries of the rest hold GONE, and no step writes them.

A state cannot be rewound. So before draft tokens are computed, the slot's state is set aside, and after a
rejected draft token the slot continues from there.
"""

from __future__ import annotations

from collections.abc import Iterable

from satchel.runtime.kv.group import GONE, BlockGroup
from satchel.runtime.layers.arch import RECURRENT, Cache


class StateGroup(BlockGroup):
    """The group of all layers with a recurrent state."""

    def __init__(self, cache: Cache) -> None:
        super().__init__(cache, RECURRENT)
        self._computed = [0] * cache.slots
        self._marks: list[frozenset[int]] = [frozenset()] * cache.slots
        # By slot: a length, and the page of the state after that many positions.
        self._aside: dict[int, tuple[int, int]] = {}

    def mark(self, slot: int, borders: Iterable[int]) -> None:
        """Requests checkpoints after these numbers of blocks: where other requests, or a longer version of
        this text, may continue.
        """
        self._marks[slot] = frozenset(borders)

    def settled(self, slot: int, start: int, end: int) -> bool:
        return False

    def note_computed(self, slot: int, length: int) -> None:
        self._computed[slot] = length

    def wanted(self, slot: int, length: int) -> list[bool]:
        last = -(-length // self.block)
        return [place in (*self._marks[slot], last) for place in range(self.end[slot] + 1, last + 1)]

    def give_back(self, slot: int, position: int) -> None:
        """Drops what lies before the last checkpoint. A rewind past it recomputes everything."""
        keep = min(max(0, position // self.block - 1), self.end[slot])
        while self.first[slot] < keep:
            self._drop(slot, self.first[slot])
            self.table[slot, self.first[slot]] = GONE
            self.first[slot] += 1

    def keep(self, slot: int) -> tuple[int, int] | None:
        """Sets the slot's state aside. If the next token would overwrite its page, gives (old, new): the
        caller copies page old to page new, which the pool must have.
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
        """Whether the state after `length` positions exists."""
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
        """Restores the state that was set aside, and drops what came after it."""
        length, page = self._aside.pop(slot)
        place = (length - 1) // self.block
        if place >= self.first[slot]:
            self._drop(slot, place)
        self.table[slot, place] = page
        self.first[slot] = min(self.first[slot], place)

    def _forget(self, slot: int) -> None:
        """Drops the state that was set aside."""
        if slot in self._aside:
            self.pool.drop(self._aside.pop(slot)[1])
