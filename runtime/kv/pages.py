"""Block allocation: which block of the pool holds which positions of which slot. A slot starts with blocks
that it shares with the prefix tree and other slots, and only reads. Blocks that it writes are its own until
it publishes them.

Layers are grouped by their window; each group has blocks of its own (group.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    """The device must copy block `old` of a group to block `new`."""

    group: int  # by its number
    old: int
    new: int


class Pages:
    """Block tables and pools of all layer groups. windows: one per group, ascending; 0, which comes first, is
    full attention.
    """

    def __init__(self, cache: Cache, windows: Sequence[int] = (0,)) -> None:
        self.cache = cache
        self.groups = tuple(StateGroup(cache) if w == RECURRENT else BlockGroup(cache, w) for w in windows)
        self.tree = PrefixTree([g.pool for g in self.groups], windows, cache.block)
        self._whole = self.groups[0].window == 0
        self.moving = tuple(g for g in self.groups if g.window)  # groups of which blocks come and go

    @property
    def table(self) -> Array:
        """Block table of the first group: (slots, most blocks of a slot)."""
        return self.groups[0].table

    @property
    def tables(self) -> dict[str, Array]:
        """Block tables of all groups, by the name of the plan's input."""
        return {g.name: g.table for g in self.groups}

    @property
    def pool(self) -> BlockPool:
        """Pool of the first group. If some layers have full attention, it is the one that runs out."""
        return self.groups[0].pool

    @property
    def max_blocks(self) -> int:
        """Most blocks of a group that a slot could have if it were alone."""
        return min(self.cache.table_width, self.pool.size) if self._whole else self.cache.table_width

    @property
    def free_blocks(self) -> int:
        """Blocks available now: free ones, and those that only the tree holds."""
        return self.pool.free + self.tree.evictable()

    def held(self, slot: int) -> list[int]:
        """The slot's blocks of the first group, in order."""
        return self.groups[0].blocks(slot)

    def missing(self, slot: int, length: int) -> int:
        """Blocks that the slot must still get to hold `length` positions. Groups with a window always have
        enough for all slots.
        """
        return self.groups[0].missing(slot, length) if self._whole else 0

    def short(self, slots: Iterable[int], lengths: Iterable[int]) -> list[tuple[int, int]]:
        """Those of these slots that lack blocks, or context, for so many positions, with their lengths."""
        most, block, have = self.cache.context, self.cache.block, self.groups[0].end
        if not self._whole:
            return [(slot, n) for slot, n in zip(slots, lengths, strict=True) if n > most]
        return [
            (slot, n) for slot, n in zip(slots, lengths, strict=True) if n > have[slot] * block or n > most
        ]

    def reserve(self, slot: int, length: int) -> None:
        """Allocates room for `length` positions of the slot, evicting unused blocks of the tree if the pool
        is empty. Takes all or nothing. Groups with a window get their blocks in advance().
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
        """Called before positions start .. end - 1 are computed. In groups with a window, frees blocks that
        these and later positions do not attend to, and allocates new ones. reserve() handles the rest.
        """
        for group in self.moving:
            if not group.settled(slot, start, end):
                group.give_back(slot, start)
                self._append(group, slot, group.wanted(slot, end))
                group.note_computed(slot, end)

    def keep(self, slot: int) -> tuple[Copy, ...]:
        """Called before draft tokens are computed, so that release() can return to the slot's present state.
        The caller must perform the copies that it returns.
        """
        number, group = len(self.groups) - 1, self.groups[-1]
        if not isinstance(group, StateGroup):
            return ()
        self._free(number)
        copy = group.keep(slot)
        return () if copy is None else (Copy(number, *copy),)

    def adopt(self, slot: int, ids: Sequence[int], salt: str = "") -> tuple[int, Miss]:
        """Gives an empty slot the cached blocks of the longest known prefix of `ids`, without the last token,
        which must be computed for its logits. Returns the number of cached tokens, and why there are not
        more.
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
        """Allocates the slot's blocks up to `blocks`, as far as the token after them needs them. The caller
        fills them with keys and values from elsewhere. Gives (group, table entry) of each. Raises
        RequestError if the pool is too small.
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
        """Most blocks, up to `most`, to which extend() can extend the slot in the free room; 0 if the slot
        has them all. has(group, entry) says which blocks the caller can provide.
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
        """Gives an empty slot the blocks of another slot's first `length` positions. As in release(), a
        partly filled last block is copied by the caller.
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
        """Puts the slot's full blocks, which hold the first tokens of `ids`, into the prefix tree. They are
        read-only from now on; what follows goes into later blocks.
        """
        self.tree.insert(ids, [g.blocks(slot) for g in self.groups], salt)

    def reach(self, slot: int, length: int) -> int:
        """Most positions, up to `length`, to which the slot can be rewound. Full attention: any. Recurrent
        states: the last checkpoint that exists. A window: none, if its group has freed what the next token
        would attend to.
        """
        ends = self.groups[-1].ends(slot, length)
        return next((n for n in ends if all(g.holds(slot, n) for g in self.groups)), 0)

    def release(self, slot: int, length: int = 0) -> tuple[Copy, ...]:
        """Keeps the first `length` positions of the slot, which it must reach(), and drops the rest. A partly
        filled last block with other holders will be written, so the slot gets a copy of it: the caller
        performs the copies that it returns.
        """
        if self.reach(slot, length) != length:
            raise ValueError(f"slot {slot} cannot be rewound to {length} tokens")
        for group in self.groups:
            group.cut(slot, length)
        shared = [i for i, g in enumerate(self.groups) if g.shared(slot, length)]
        for i in shared:
            self._free(i)
        place = length // self.cache.block
        return tuple(Copy(i, *self.groups[i].exchange(slot, place)) for i in shared)

    def check(self) -> None:
        """Raises ValueError if blocks are leaked or holder counts are wrong; for tests."""
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
        """Makes sure that the group has a free block for a copy."""
        pool = self.groups[number].pool
        if not pool.free and not self.tree.evict(1, number):
            raise RequestError(f"the KV cache is full: none of its {pool.size} blocks is free for a copy")

    def _append(self, group: BlockGroup, slot: int, wanted: Sequence[bool]) -> None:
        """Appends the slot's next table entries. Wanted ones get blocks of the pool, or evicted ones of the
        tree if the pool is empty.
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
