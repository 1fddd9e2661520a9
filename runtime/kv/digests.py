"""Digests of cached blocks: a block's is that of its salt and of all tokens up to its end.

Invariant: without the key nobody can tell what a digest stands for or find two texts with one digest. A
process has a key of its own; the members of a fleet have one together.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from satchel.runtime.kv.prefix import Key, PrefixNode

SHORT = 16  # bytes of a digest as a fleet's members tell it


class BlockDigests:
    """block: tokens of a block. key: 32 bytes; empty: a new one."""

    def __init__(self, block: int, key: bytes = b"") -> None:
        self.block, self._key = block, key or secrets.token_bytes(32)

    def root(self, salt: str) -> bytes:
        """The digest before the first block."""
        return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=32, key=self._key).digest()

    def of(self, node: PrefixNode) -> bytes:
        """The digest of a node of the tree: a hash chain from the root, cached in it and its ancestors."""
        path: list[PrefixNode] = []
        up: PrefixNode | None = node
        while up is not None and up.parent is not None and not up.digest:
            path.append(up)
            up = up.parent
        digest = up.digest if up is not None and up.digest else self.root(node.salt)
        for each in reversed(path):
            digest = each.digest = _next(digest, each.key)
        return digest

    def chain(self, ids: Sequence[int], salt: str) -> Iterator[bytes]:
        """The digest of each full block of `ids`."""
        digest = self.root(salt)
        for start in range(0, len(ids) - self.block + 1, self.block):
            digest = _next(digest, tuple(ids[start : start + self.block]))
            yield digest


def _next(digest: bytes, key: Key) -> bytes:
    return blake2b(digest + array("i", key).tobytes(), digest_size=32).digest()
