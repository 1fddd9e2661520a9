"""Pages of the states of layers that keep one instead of keys and values: the page of a block holds the state
as the last token fed of that block left it, so that of a full block is a checkpoint at the block's end.

A slot has the page that it goes on from and the last checkpoint before it. Of a prompt's other blocks those
get a page whose end is marked; the places of the rest hold GONE, and no step writes there.
"""

from __future__ import annotations

from collections.abc import Iterable

from satchel.runtime.arch import RECURRENT, Cache
from satchel.runtime.kv.group import GONE, Group


class StateGroup(Group):
    """The group of all layers with a state."""

    def __init__(self, cache: Cache) -> None:
        super().__init__(cache, RECURRENT)
        self._fed = [0] * cache.slots
        self._marks: list[frozenset[int]] = [frozenset()] * cache.slots

    def mark(self, slot: int, borders: Iterable[int]) -> None:
        """Checkpoints are kept after so many blocks: where others, or this text grown, may go on."""
        self._marks[slot] = frozenset(borders)

    def fed(self, slot: int, length: int) -> None:
        self._fed[slot] = length

    def wanted(self, slot: int, length: int) -> list[bool]:
        last = -(-length // self.block)
        return [place in (*self._marks[slot], last) for place in range(self.end[slot] + 1, last + 1)]

    def give_back(self, slot: int, position: int) -> None:
        """Lets go of what stands before the last checkpoint; going back further, all is fed again."""
        keep = min(max(0, position // self.block - 1), self.end[slot])
        while self.first[slot] < keep:
            self._drop(slot, self.first[slot])
            self.table[slot, self.first[slot]] = GONE
            self.first[slot] += 1

    def holds(self, slot: int, length: int) -> bool:
        """Whether the state after `length` positions is there."""
        if length in (0, self._fed[slot]):
            return True
        place = length // self.block - 1
        whole = length % self.block == 0 and self.first[slot] <= place < self.end[slot]
        return bool(whole and self.table[slot, place] != GONE)

    def begin(self, slot: int, first: int, blocks: list[int]) -> None:
        super().begin(slot, first, blocks)
        self._fed[slot] = self.end[slot] * self.block

    def cut(self, slot: int, length: int) -> None:
        super().cut(slot, length)
        self._fed[slot] = min(self._fed[slot], length)
