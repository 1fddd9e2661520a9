"""Which block of the pool holds which positions of which slot. A slot begins with blocks that it shares with
the prefix tree and others, which it only reads; those that it writes are its own until it publishes them.

Layers are grouped by their window; each group has blocks of its own (group.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from satchel.errors import RequestError
from satchel.runtime.graph import Array
from satchel.runtime.kv.group import GONE, BlockGroup
from satchel.runtime.kv.pool import BlockPool
from satchel.runtime.kv.prefix import Miss, PrefixTree
from satchel.runtime.kv.recurrent import StateGroup
from satchel.runtime.layers.arch import RECURRENT, Cache


@dataclass(frozen=True, slots=True)
class Copy:
    """Block `old` of a group (by its number) must be copied to block `new`."""

    group: int
    old: int
    new: int


class Pages:
    """windows: of the model's groups of layers, ascending; 0, which comes first, for those that see all."""

    def __init__(self, cache: Cache, windows: Sequence[int] = (0,)) -> None:
        self.cache = cache
        self.groups = tuple(StateGroup(cache) if w == RECURRENT else BlockGroup(cache, w) for w in windows)
        self.tree = PrefixTree([g.pool for g in self.groups], windows, cache.block)
        self._whole = self.groups[0].window == 0

    @property
    def table(self) -> Array:
        """The first group's block table: (slots, blocks a slot may have)."""
        return self.groups[0].table

    @property
    def tables(self) -> dict[str, Array]:
        """Every group's block table by the name of the plan's input."""
        return {g.name: g.table for g in self.groups}

    @property
    def pool(self) -> BlockPool:
        """The first group's blocks: those that run out, where some layers see all."""
        return self.groups[0].pool

    @property
    def max_blocks(self) -> int:
        """The most blocks that a slot could have of a group, were it alone."""
        return min(self.cache.table_width, self.pool.size) if self._whole else self.cache.table_width

    @property
    def free_blocks(self) -> int:
        """Blocks that can be had now: free ones, and those that the tree alone holds."""
        return self.pool.free + self.tree.evictable()

    def held(self, slot: int) -> list[int]:
        """The slot's blocks of the first group in order."""
        return self.groups[0].blocks(slot)

    def missing(self, slot: int, length: int) -> int:
        """Blocks that the slot needs besides its own for `length` positions. Of windows there are enough for
        all slots, always.
        """
        return self.groups[0].missing(slot, length) if self._whole else 0

    def reserve(self, slot: int, length: int) -> None:
        """Makes room for `length` positions of the slot, giving up unused blocks of the tree where the pool
        is empty; nothing is taken where there is not enough. Layers with a window get theirs in advance().
        """
        if length > self.cache.context:
            raise RequestError(
                f"{length} tokens do not fit the context of {self.cache.context}: shorten the prompt or "
                "raise -c"
            )
        missing = self.missing(slot, length)
        if not missing:
            return
        if missing > self.pool.free and missing > self.free_blocks:
            raise RequestError(
                f"the KV cache is full: {missing} blocks are needed, "
                f"{self.free_blocks} of {self.cache.pool} are free"
            )
        if missing:
            self._append(self.groups[0], slot, [True] * missing)

    def advance(self, slot: int, start: int, end: int) -> None:
        """Before positions start .. end - 1 are computed: in groups with a window, blocks that these and
        later ones do not see are given back, and new ones taken. All else is reserve()'s.
        """
        for group in self.groups:
            if group.window:
                group.give_back(slot, start)
                self._append(group, slot, group.wanted(slot, end))
                group.note_computed(slot, end)

    def keep(self, slot: int) -> tuple[Copy, ...]:
        """Before draft tokens are computed: release() can go back to what the slot has now. As there, the
        caller copies what is returned.
        """
        number, group = len(self.groups) - 1, self.groups[-1]
        if not isinstance(group, StateGroup):
            return ()
        self._free(number)
        copy = group.keep(slot)
        return () if copy is None else (Copy(number, *copy),)

    def adopt(self, slot: int, ids: Sequence[int], salt: str = "") -> tuple[int, Miss]:
        """Gives an empty slot the blocks that are known for the beginning of `ids`, but never its last token,
        which must be computed for its logits. Returns the tokens that are there, and why it is not more.
        """
        held = max(g.end[slot] for g in self.groups)
        if held:
            raise ValueError(f"slot {slot} holds {held} blocks: release it first")
        found, why = self.tree.match(ids[:-1], salt)
        for group, first, blocks in zip(self.groups, found.first, found.blocks, strict=True):
            group.begin(slot, first, blocks)
        last = self.groups[-1]
        if isinstance(last, StateGroup):
            last.mark(slot, ((len(ids) - 1) // self.cache.block, len(self.tree.path(ids[:-1], salt))))
        return found.length * self.cache.block, why

    def extend(self, slot: int, blocks: int) -> list[tuple[int, int]]:
        """Takes blocks for a slot up to so many, as far as a token after them sees, whose keys and values the
        caller brings from elsewhere: (group, place) of each. RequestError where there are too few.
        """
        taken: list[tuple[int, int]] = []
        for number, group in enumerate(self.groups):
            need = group.needed(blocks * self.cache.block)
            if need > group.end[slot]:
                group.cut(slot, 0)
                group.begin(slot, need, [])
            taken += [(number, place) for place in range(group.end[slot], blocks)]
            self._append(group, slot, [True] * max(0, blocks - group.end[slot]))
        return taken

    def reachable(self, slot: int, most: int, has: Callable[[int, int], bool]) -> int:
        """The most blocks, up to `most`, to which extend() can go in the room that there is, where has(group,
        place) says which blocks can be brought; 0 where the slot has them all already.
        """
        have, block = min(g.end[slot] for g in self.groups), self.cache.block
        for blocks in range(most, have, -1):
            if self.missing(slot, blocks * block) > self.free_blocks:
                continue
            if all(
                has(n, place)
                for n, g in enumerate(self.groups)
                for place in range(max(g.end[slot], g.needed(blocks * block)), blocks)
            ):
                return blocks
        return 0

    def fork(self, source: int, slot: int, length: int) -> tuple[Copy, ...]:
        """Gives an empty slot the blocks of another's first `length` positions. As release(): where the last
        is not full, the slot gets one of its own, into which the caller copies.
        """
        if any(g.end[slot] for g in self.groups):
            raise ValueError(f"slot {slot} holds blocks: release it first")
        for group in self.groups:
            first = min(group.first[source], -(-length // self.cache.block))
            group.begin(slot, first, group.blocks(source)[first : -(-length // self.cache.block)])
            group.note_computed(slot, length)
        try:
            return self.release(slot, length)
        except RequestError:
            self.release(slot)
            raise

    def publish(self, slot: int, ids: Sequence[int], salt: str = "") -> None:
        """Lets others find the slot's full blocks, which hold the beginning of `ids`. They are read only from
        now on: what follows goes into later blocks.
        """
        self.tree.insert(ids, [g.blocks(slot) for g in self.groups], salt)

    def reach(self, slot: int, length: int) -> int:
        """The most positions, up to `length`, that the slot can go back to: all; of layers with a state those
        of the last one that is there; or none where a window's have given back what the next token would see.
        """
        ends = self.groups[-1].ends(slot, length)
        return next((n for n in ends if all(g.holds(slot, n) for g in self.groups)), 0)

    def release(self, slot: int, length: int = 0) -> tuple[Copy, ...]:
        """Keeps the first `length` positions of the slot, which it can reach(), and lets go of the rest.

        Where the last kept block is not full and has other holders, the slot gets one of its own instead, for
        it will be written; the caller copies what is returned.
        """
        if self.reach(slot, length) != length:
            raise ValueError(f"slot {slot} cannot go back to {length} tokens")
        for group in self.groups:
            group.cut(slot, length)
        shared = [i for i, g in enumerate(self.groups) if g.shared(slot, length)]
        for i in shared:
            self._free(i)
        place = length // self.cache.block
        return tuple(Copy(i, *self.groups[i].exchange(slot, place)) for i in shared)

    def check(self) -> None:
        """ValueError where blocks are lost, or held by nobody; for tests."""
        self.tree.check()
        for number, group in enumerate(self.groups):
            kept, counted = self.tree.kept(number), group.count()
            for block, holders in enumerate(group.pool.holders):
                if holders != counted[block] + (block in kept):
                    raise ValueError(
                        f"block {block} has {holders} holders, slots account for {counted[block]}"
                    )
            if sum(1 for h in group.pool.holders if not h) != group.pool.free:
                raise ValueError(f"{group.pool.free} blocks are free, the holders say otherwise")

    def _free(self, number: int) -> None:
        """Makes sure that the group has a block for a copy."""
        pool = self.groups[number].pool
        if not pool.free and not self.tree.evict(1, number):
            raise RequestError(f"the KV cache is full: none of its {pool.size} blocks is free for a copy")

    def _append(self, group: BlockGroup, slot: int, wanted: Sequence[bool]) -> None:
        """The slot's next places, those that are wanted with blocks of the pool, or of the tree where that is
        empty.
        """
        count = sum(wanted)
        short = count - group.pool.free
        if short > 0 and self.tree.evict(short, self.groups.index(group)) < short:
            raise RequestError(
                f"the KV cache is full: {count} blocks of window {group.window} are needed, "
                f"{group.pool.free} of {group.pool.size} are free"
            )
        for want in wanted:
            group.append(slot, group.pool.take() if want else GONE)
