"""Host-memory tier below the prefix tree. Blocks that the tree evicts are kept here, up to a limit in bytes,
and return to the cache when a prompt begins with their tokens.

A block's key is a digest of the salt and of all tokens up to its end (digests.py).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from satchel.runtime.engine.states import States
from satchel.runtime.graph import Array
from satchel.runtime.kv.digests import BlockDigests
from satchel.runtime.kv.group import GONE
from satchel.runtime.kv.news import BlockNews
from satchel.runtime.kv.pages import Pages
from satchel.runtime.kv.prefix import Miss, PrefixNode

MEMORY = 0.9  # weight of past measurements in the running mean
PROBE = 64  # one in 64 moves that do not pay is made anyway, because rates change
PLACES = 4096  # evicted continuations that are remembered


class Rate:
    """Running mean of copy speed in bytes per second; 0 before the first copy."""

    def __init__(self) -> None:
        self._bytes = self._seconds = 0.0

    def learn(self, count: int, seconds: float) -> None:
        self._bytes = MEMORY * self._bytes + count
        self._seconds = MEMORY * self._seconds + seconds

    @property
    def value(self) -> float:
        return self._bytes / self._seconds if self._seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Kept:
    """A block of tokens in host memory."""

    blocks: tuple[Array | None, ...]  # bytes of each group's block; None: the group had freed it
    cut: bool  # a block that followed was dropped before this one
    parent: bytes  # digest of the block before it
    root: bytes  # digest of its salt

    @property
    def nbytes(self) -> int:
        return sum(b.nbytes for b in self.blocks if b is not None)


class HostTier:
    """Blocks in host memory. Only the engine's thread uses it.

    limit: bytes of keys and values.
    recompute: estimated seconds to compute n tokens, None while unknown; a block moves only if that is
    faster.
    kept_out, brought_back, skipped: blocks that were stored, returned, and not worth moving.
    """

    def __init__(self, limit: int, pages: Pages, states: States) -> None:
        self.limit, self.used, self.pages, self.states = limit, 0, pages, states
        self.recompute: Callable[[int], float | None] = lambda tokens: None
        self.out, self.back = Rate(), Rate()
        self.kept_out = self.brought_back = self.skipped = 0
        self._kept: OrderedDict[bytes, Kept] = OrderedDict()
        self._lost: OrderedDict[bytes, None] = OrderedDict()  # digests whose next block was dropped
        self.digests = BlockDigests(pages.cache.block)
        self.news: BlockNews | None = None  # told of what is kept
        pages.tree.below = self

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, node: PrefixNode, salt: str) -> bool:
        """Stores the blocks of a node that the tree is about to evict, if that pays."""
        digest = self.digests.of(node)
        if digest in self._kept:
            self._kept.move_to_end(digest)
            return True
        sizes = [s for s, b in zip(self.states.block_bytes, node.blocks, strict=True) if b != GONE]
        if sum(sizes) > self.limit or not self._pays(1, sum(sizes), there_and_back=True):
            return False
        while self.used + sum(sizes) > self.limit:
            self._lose(next(iter(self._kept)))
        started = time.perf_counter()
        blocks = tuple(self._read(group, block) for group, block in enumerate(node.blocks))
        self.out.learn(sum(sizes), time.perf_counter() - started)
        root = self.digests.root(salt)
        parent = node.parent.digest if node.parent is not None and node.parent.digest else root
        self._kept[digest] = Kept(blocks, node.cut, parent, root)
        self.used += sum(sizes)
        self.kept_out += 1
        if self.news is not None and GONE not in node.blocks:
            self.news.held(digest)
        return True

    def bring(self, slot: int, ids: Sequence[int], salt: str, cached: int, why: Miss) -> tuple[int, Miss]:
        """Extends a slot that has the first `cached` tokens of `ids` from the tree, up to the last token but
        one. Gives how many tokens it has now, and why not more. Nothing moves unless there is room for all of
        `ids`.
        """
        if not (self._kept or self._lost):
            return cached, why
        pages, block = self.pages, self.pages.cache.block
        start, chain = cached // block, list(self.digests.chain(ids[:-1], salt))
        known = start
        while known < len(chain) and chain[known] in self._kept:
            known += 1
        most = 0
        if known > start and pages.missing(slot, len(ids)) <= pages.free_blocks:
            most = pages.reachable(slot, known, lambda g, p: p < known and self._has(chain[p], g))
        found = [self._kept[d] for d in chain[start:most]]
        if found and self._pays(len(found), sum(k.nbytes for k in found)):
            self._fill(slot, most, start, chain)
            pages.publish(slot, ids[: most * block], salt)
            for node, kept in zip(pages.tree.path(ids[: most * block], salt)[start:], found, strict=True):
                node.cut = kept.cut
            cached = most * block
            why = Miss.EVICTED if most < known or found[-1].cut else Miss.DIFFERS
        elif known > start:  # no room for all of it, or not worth the move
            why = Miss.EVICTED
        return cached, self._why(cached // block, chain, salt, why)

    def _why(self, length: int, chain: Sequence[bytes], salt: str, why: Miss) -> Miss:
        """Why no more than `length` blocks of a chain were found."""
        if length == len(chain):
            return Miss.NONE
        end = chain[length - 1] if length else self.digests.root(salt)
        return Miss.EVICTED if end in self._lost and why is not Miss.WINDOW else why

    def _fill(self, slot: int, most: int, start: int, chain: Sequence[bytes]) -> None:
        # Take the blocks out first: making room below may evict blocks of this tier, oldest first.
        found = [self._forget(d) for d in chain[start:most]]
        moved, started = 0, time.perf_counter()
        for group, place in self.pages.extend(slot, most):
            data = found[place - start].blocks[group]
            if data is None:
                raise ValueError(f"block {place} of group {group} is not kept")  # reachable() said it was
            target = int(self.pages.groups[group].table[slot, place])
            self.states.write_block(target, data, group)
            moved += data.nbytes
        self.back.learn(moved, time.perf_counter() - started)
        self.brought_back += len(found)

    def forget(self, salt: str | None) -> None:
        """Drops everything, or everything under one salt."""
        root = None if salt is None else self.digests.root(salt)
        if root is None:
            self._lost.clear()
        for digest in [d for d, kept in self._kept.items() if root in (None, kept.root)]:
            self._forget(digest)

    def check(self) -> None:
        """Raises ValueError if the tier exceeds its limit or its count is wrong; for tests."""
        held = sum(kept.nbytes for kept in self._kept.values())
        if held != self.used or held > self.limit:
            raise ValueError(f"{held} bytes are kept, {self.used} counted, {self.limit} allowed")

    def _pays(self, blocks: int, count: int, *, there_and_back: bool = False) -> bool:
        """Whether moving `count` bytes is faster than recomputing the blocks, as far as rates are known."""
        computing, back = self.recompute(blocks * self.pages.cache.block), self.back.value or self.out.value
        if computing is None or not back:
            return True
        seconds = count / back + (count / self.out.value if there_and_back and self.out.value else 0.0)
        if seconds < computing:
            return True
        self.skipped += 1
        return self.skipped % PROBE == 0

    def _lose(self, digest: bytes) -> None:
        """Records that a block was dropped for good; remembers the last PLACES of them."""
        self._lost[self._forget(digest).parent] = None
        while len(self._lost) > PLACES:
            self._lost.popitem(last=False)

    def _has(self, digest: bytes, group: int) -> bool:
        kept = self._kept.get(digest)
        return kept is not None and kept.blocks[group] is not None

    def _forget(self, digest: bytes) -> Kept:
        kept = self._kept.pop(digest)
        self.used -= kept.nbytes
        if self.news is not None and all(block is not None for block in kept.blocks):
            self.news.dropped(digest)
        return kept

    def _read(self, group: int, block: int) -> Array | None:
        if block == GONE:
            return None
        out = np.empty(self.states.block_bytes[group], np.uint8)
        self.states.read_block(block, out, group)
        return out
