"""Prefix tree (radix cache) of token blocks whose keys and values are in the pool: requests with a common
prefix share them.

A node is one full block of tokens that follows its parent's. The tree is a holder of each of its blocks, so
they outlive the request that computed them. When the pool runs out, the least recently used leaf is evicted
first. A prefix under one salt is never found under another, so a client cannot probe what others have asked.

A node holds a block of each layer group. Layers with a window need only the last blocks before the point
where a request continues, so a node may lack theirs.

A block is idle if the tree is its only holder. Which blocks can be evicted, and in what order, is kept up to
date as holders come and go: where the cache is full, every new block asks for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import count
from typing import Protocol

from satchel.runtime.kv.group import GONE, first_needed
from satchel.runtime.kv.pool import BlockPool

Key = tuple[int, ...]
SPARE = 64  # outdated entries of a queue, beyond one per node, before it is made anew


class Miss(StrEnum):
    """Why the rest of a prompt was not in the cache."""

    NONE = "all of it was, but for what must be computed"
    COLD = "nothing was kept yet"
    SALT = "nothing was kept under this salt"
    DIFFERS = "the prompt differs from what was kept"
    EVICTED = "what followed was given up for room"
    LOST = "the worker process was lost, and all that was kept with it"
    WINDOW = "layers with a window kept what later tokens see, not what this prompt needs"


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """A cached prefix."""

    length: int  # in blocks
    first: tuple[int, ...]  # of each group, the first block that is present
    blocks: tuple[list[int], ...]  # of each group, from block `first` on


@dataclass(slots=True, eq=False)
class PrefixNode:
    """A block of tokens in the tree."""

    key: Key
    blocks: list[int]  # its cache block in each group, or GONE
    parent: PrefixNode | None  # None: it is a root, or no longer in the tree
    salt: str = ""
    depth: int = -1  # number of blocks before it
    used: int = 0  # the tree's clock at the last read or write
    # Children with a reader at or below them, and one more if its own block has one. Full attention alone.
    readers: int = 0
    cut: bool = False  # children were evicted and no lower tier holds them
    digest: bytes = b""  # its key in the lower tier and for BlockNews, computed at the first use
    told: bool = False  # the tree's BlockNews counts it
    children: dict[Key, PrefixNode] = field(default_factory=dict)


class News(Protocol):
    """Who is told of the blocks that the tree has (news.py)."""

    def joined(self, node: PrefixNode) -> None: ...

    def left(self, node: PrefixNode) -> None: ...


class Below(Protocol):
    """A lower tier, which keeps blocks that the tree evicts."""

    def take(self, node: PrefixNode, salt: str) -> bool: ...

    def forget(self, salt: str | None) -> None: ...


# A node whose block may be evicted: its `used` and depth, a number that settles ties, and the node.
Candidate = tuple[int, int, int, PrefixNode]


class PrefixTree:
    """Finds cached blocks by their tokens and all tokens before them. pools, windows: one per layer group;
    full attention (window 0), if present, comes first.
    """

    def __init__(self, pools: Sequence[BlockPool], windows: Sequence[int], block: int) -> None:
        self.pools, self.windows, self.block, self.size = tuple(pools), tuple(windows), block, 0
        self._roots: dict[str, PrefixNode] = {}
        self.below: Below | None = None
        self.news: News | None = None
        self._clock = 0
        self._holding: list[dict[int, PrefixNode]] = [{} for _ in pools]  # of each group, by block
        # Of each group, candidates for eviction as a heap; with full attention, idle leaves. Those whose node
        # has changed since are outdated.
        self._candidates: list[list[Candidate]] = [[] for _ in pools]
        self._numbers = count()
        self._read = 0  # nodes with readers
        self._idle_blocks = [0] * len(windows)
        for group, pool in enumerate(self.pools):
            pool.shared = partial(self._holders_changed, group)

    def match(self, ids: Sequence[int], salt: str = "") -> tuple[CachedPrefix, Miss]:
        """Blocks of the longest cached prefix of `ids`, whole blocks only, and why it is not longer."""
        node = self._roots.get(salt)
        if node is None:
            return self._found([]), Miss.SALT if self._roots else Miss.COLD
        path, why = self._walk(node, ids)
        length = self._usable(path)
        self._clock += 1
        for node in path[:length]:
            node.used = self._clock
            self._offer(node)
        return self._found(path[:length]), why if length == len(path) else Miss.WINDOW

    def path(self, ids: Sequence[int], salt: str = "") -> list[PrefixNode]:
        """Nodes of the longest cached prefix of `ids`."""
        root = self._roots.get(salt)
        return self._walk(root, ids)[0] if root else []

    def _walk(self, node: PrefixNode, ids: Sequence[int]) -> tuple[list[PrefixNode], Miss]:
        """Nodes of the longest prefix of `ids`, whatever blocks they hold."""
        path: list[PrefixNode] = []
        for key in self._keys(ids):
            child = node.children.get(key)
            if child is None:
                return path, Miss.EVICTED if node.cut else Miss.DIFFERS
            path.append(child)
            node = child
        return path, Miss.NONE

    def _usable(self, path: Sequence[PrefixNode]) -> int:
        """The most nodes of a path after which every group has the blocks that the next token needs."""
        best, there = 0, [0] * len(self.windows)  # length of the run of nodes with the group's block
        for n, node in enumerate(path, 1):
            there = [0 if b == GONE else run + 1 for run, b in zip(there, node.blocks, strict=True)]
            if all(run >= n - self._needed(g, n) for g, run in enumerate(there)):
                best = n
        return best

    def _needed(self, group: int, length: int) -> int:
        """First block that the token after `length` blocks needs."""
        return first_needed(self.windows[group], length * self.block, self.block)

    def _found(self, path: Sequence[PrefixNode]) -> CachedPrefix:
        first = tuple(self._needed(g, len(path)) for g in range(len(self.windows)))
        return CachedPrefix(
            len(path), first, tuple([n.blocks[g] for n in path[at:]] for g, at in enumerate(first))
        )

    def insert(self, ids: Sequence[int], blocks: Sequence[Sequence[int]], salt: str = "") -> int:
        """Adds the full blocks of `ids`, whose cache blocks are `blocks` of each group; gives the number of
        new nodes. If the tree already has a block of the same tokens, it keeps that one, and the other stays
        the slot's alone.
        """
        self._clock += 1
        node = self._roots.setdefault(salt, PrefixNode((), [], None, salt))
        made = 0
        for key, mine in zip(self._keys(ids), zip(*blocks, strict=False), strict=False):
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = PrefixNode(key, [GONE] * len(mine), node, salt, node.depth + 1)
                made += 1
            for group, block in enumerate(mine):
                if child.blocks[group] == GONE and block != GONE:
                    self._hold(child, group, block)
            if self.news is not None and not child.told and GONE not in child.blocks:
                self.news.joined(child)
            child.used = self._clock
            self._offer(child)
            node = child
        self.size += made
        return made

    def evict(self, wanted: int, group: int = 0) -> int:
        """Evicts unread blocks of a group, least recently used first, until `wanted` blocks became free;
        gives their number.
        """
        return self._evict_leaves(wanted) if not self.windows[group] else self._evict_any(wanted, group)

    def _evict_leaves(self, wanted: int) -> int:
        """Evicts leaves, with their blocks of all groups: a block is useless without the ones before it."""
        freed = 0
        while freed < wanted and (node := self._oldest(0)) is not None:
            parent = node.parent
            self._remove(node, self.below is not None and self.below.take(node, node.salt))
            freed += 1
            if parent is not None:
                self._offer(parent)
        return freed

    def _evict_any(self, wanted: int, group: int) -> int:
        """Evicts blocks of a window. They are usable without the blocks before them, so of equally old ones
        the earlier in the text goes first.
        """
        freed = 0
        while freed < wanted and (node := self._oldest(group)) is not None:
            self._let_go(node, group)
            self._prune(node)
            freed += 1
        return freed

    def evictable(self) -> int:
        """Blocks of the first group that evict() could free. With full attention, those of nodes that no slot
        reads and below which no slot reads.
        """
        return self._idle_blocks[0] if self.windows[0] else self.size - self._read

    def _holders_changed(self, group: int, block: int) -> None:
        """A block of the pool has got a second holder, or is left with one."""
        node = self._holding[group].get(block)
        if node is not None:
            self._count(node, group, idle=self.pools[group].holders[block] == 1)
            self._offer(node)

    def _count(self, node: PrefixNode, group: int, *, idle: bool) -> None:
        """Notes that the node's block of a group has become idle, or has a reader."""
        self._idle_blocks[group] += 1 if idle else -1
        if group == 0 and not self.windows[0]:
            self._count_readers(node, -1 if idle else 1)

    def _count_readers(self, node: PrefixNode, change: int) -> None:
        """Adds to the readers of a node, and of its ancestors as far as that makes a difference to them."""
        up: PrefixNode | None = node
        while up is not None and up.parent is not None:
            before, up.readers = up.readers, up.readers + change
            if before and up.readers:
                return
            self._read += change
            up = up.parent

    def _hold(self, node: PrefixNode, group: int, block: int) -> None:
        """Makes the tree a holder of a slot's block, as the node's."""
        self.pools[group].hold(block)
        node.blocks[group] = block
        self._holding[group][block] = node
        if group == 0 and not self.windows[0]:
            self._count_readers(node, 1)

    def _let_go(self, node: PrefixNode, group: int) -> None:
        """Gives up the node's block of a group."""
        if self.news is not None and node.told:
            self.news.left(node)
        block, node.blocks[group] = node.blocks[group], GONE
        del self._holding[group][block]
        if self.pools[group].holders[block] == 1:
            self._idle_blocks[group] -= 1
        self.pools[group].drop(block)

    def _offer(self, node: PrefixNode) -> None:
        """Puts the node among the candidates of each group for which it is one."""
        for group, waiting in enumerate(self._candidates):
            if self._is_candidate(node, group):
                heapq.heappush(waiting, (node.used, node.depth, next(self._numbers), node))
                if len(waiting) > 2 * self.size + SPARE:
                    waiting[:] = [c for c in waiting if self._is_current(c, group)]
                    heapq.heapify(waiting)

    def _is_candidate(self, node: PrefixNode, group: int) -> bool:
        """Whether the node's block of a group may be evicted now. Blocks of a window go with their node where
        the first group has full attention and the node is a leaf, and alone at any time.
        """
        block = node.blocks[group] if node.parent is not None else GONE
        leaf = bool(self.windows[group]) or not node.children
        return block != GONE and leaf and self.pools[group].holders[block] == 1

    def _is_current(self, candidate: Candidate, group: int) -> bool:
        used, _, _, node = candidate
        return used == node.used and self._is_candidate(node, group)

    def _oldest(self, group: int) -> PrefixNode | None:
        """Takes the candidate of a group that was used longest ago."""
        waiting = self._candidates[group]
        while waiting:
            candidate = heapq.heappop(waiting)
            if self._is_current(candidate, group):
                return candidate[-1]
        return None

    def kept(self, group: int = 0) -> set[int]:
        """Blocks of a group that the tree holds."""
        return {n.blocks[group] for n in self._nodes()} - {GONE}

    def clear(self, salt: str | None = None) -> None:
        """Drops everything, or everything under one salt, here and in the lower tier."""
        if self.below is not None:
            self.below.forget(salt)
        for node in list(self._nodes(salt)):
            self._read -= node.readers > 0
            self._drop(node)
        if salt is None:
            self._roots.clear()
        else:
            self._roots.pop(salt, None)

    def check(self) -> None:
        """Raises ValueError if the tree contradicts itself or the pools; for tests."""
        nodes = list(self._nodes())
        if len(nodes) != self.size:
            raise ValueError(f"{len(nodes)} nodes, {self.size} counted")
        for group, (pool, window) in enumerate(zip(self.pools, self.windows, strict=True)):
            blocks = [n.blocks[group] for n in nodes if n.blocks[group] != GONE]
            if len(set(blocks)) != len(blocks) or (not window and len(blocks) != len(nodes)):
                raise ValueError(f"{len(nodes)} nodes hold {len(blocks)} blocks, {len(set(blocks))} apart")
            if self._holding[group] != {n.blocks[group]: n for n in nodes if n.blocks[group] != GONE}:
                raise ValueError(f"group {group}: the nodes that hold blocks are noted wrongly")
            if self._idle_blocks[group] != sum(pool.holders[b] == 1 for b in blocks):
                raise ValueError(f"group {group}: {self._idle_blocks[group]} blocks are noted as idle")
            known = {c[-1] for c in self._candidates[group] if self._is_current(c, group)}
            if known != {n for n in nodes if self._is_candidate(n, group)}:
                raise ValueError(f"group {group}: the candidates for eviction are noted wrongly")
            free = next((b for b in blocks if pool.holders[b] < 1), None)
            if free is not None:
                raise ValueError(f"block {free} of the tree is free in the pool")
        if not self.windows[0]:
            self._check_readers(nodes)

    def _check_readers(self, nodes: Sequence[PrefixNode]) -> None:
        """The same of the nodes at or below which a slot reads. nodes: parents before children."""
        busy = {n for n in nodes if self.pools[0].holders[n.blocks[0]] > 1}
        for node in reversed(nodes):
            if node in busy and node.parent is not None:
                busy.add(node.parent)
        if busy & {*nodes} != {n for n in nodes if n.readers} or self._read != len(busy & {*nodes}):
            raise ValueError(f"{self._read} nodes are noted as read")

    def _keys(self, ids: Sequence[int]) -> Iterator[Key]:
        for start in range(0, len(ids) - self.block + 1, self.block):
            yield tuple(ids[start : start + self.block])

    def _nodes(self, salt: str | None = None) -> Iterator[PrefixNode]:
        roots = self._roots.values() if salt is None else [self._roots[salt]] if salt in self._roots else []
        waiting = [child for root in roots for child in root.children.values()]
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            yield node

    def _prune(self, node: PrefixNode) -> None:
        """Removes a leaf without blocks, then each ancestor that becomes such a leaf."""
        up: PrefixNode | None = node
        while up is not None and up.parent and not up.children and all(b == GONE for b in up.blocks):
            above = up.parent
            self._remove(up)
            up = above

    def _remove(self, node: PrefixNode, kept: bool = False) -> None:
        """Removes a node from the tree. kept: the lower tier holds a copy, so the parent does not count as
        cut and a later prompt can fetch the block again.
        """
        parent = node.parent
        if parent is not None:
            del parent.children[node.key]
            parent.cut = parent.cut or not kept
        self._drop(node)

    def _drop(self, node: PrefixNode) -> None:
        for group, block in enumerate(node.blocks):
            if block != GONE:
                self._let_go(node, group)
        node.parent = None
        self.size -= 1


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    a, b = list(a), list(b)  # a list equals no tuple
    low, high = 0, min(len(a), len(b))
    while low < high:  # a slice is compared in C: halving beats a loop over tokens
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
