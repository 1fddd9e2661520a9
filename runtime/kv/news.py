"""News of cached blocks: which blocks the prefix tree or the host tier have taken, and which both gave up,
since they were last told.

A block counts while a prompt can go on after it, so one that lacks the keys and values of a layer group does
not. The engine's thread changes the counts; any thread takes the news.
"""

from __future__ import annotations

import threading
from collections import Counter
from itertools import islice
from typing import NamedTuple

from satchel.runtime.kv.digests import BlockDigests
from satchel.runtime.kv.prefix import PrefixNode

MOST_TOLD = 4096  # digests that are told at once


class Told(NamedTuple):
    """Digests of blocks."""

    kept: list[bytes]
    gone: list[bytes]


class BlockNews:
    """digests: those of the tree's nodes and of the tier, under one key."""

    def __init__(self, digests: BlockDigests) -> None:
        self.digests, self._lock = digests, threading.Lock()
        self._held: Counter[bytes] = Counter()  # holders of each block: the tree, the tier
        self._changes: dict[bytes, bool] = {}  # blocks that came (True) or went since they were last told

    def joined(self, node: PrefixNode) -> None:
        """The tree has the node's block."""
        node.told = True
        self.held(self.digests.of(node))

    def left(self, node: PrefixNode) -> None:
        """The tree gives it up."""
        node.told = False
        self.dropped(self.digests.of(node))

    def held(self, digest: bytes) -> None:
        """The block has one holder more."""
        with self._lock:
            self._held[digest] += 1
            if self._held[digest] == 1:
                self._change(digest, came=True)

    def dropped(self, digest: bytes) -> None:
        """The block has one holder less."""
        with self._lock:
            self._held[digest] -= 1
            if self._held[digest] <= 0:
                del self._held[digest]
                self._change(digest, came=False)

    def clear(self) -> None:
        """The engine was lost: nothing is held."""
        with self._lock:
            for digest in self._held:
                self._change(digest, came=False)
            self._held.clear()

    def _change(self, digest: bytes, *, came: bool) -> None:
        if self._changes.pop(digest, None) is None:  # else it is as it was told
            self._changes[digest] = came

    def take(self) -> Told:
        """What changed since the last call, in no order; MOST_TOLD digests, and the rest at the next call."""
        with self._lock:
            some = list(islice(self._changes.items(), MOST_TOLD))
            for digest, _ in some:
                del self._changes[digest]
        return Told([d for d, came in some if came], [d for d, came in some if not came])
