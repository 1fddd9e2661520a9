"""The blocks of the KV cache, each with the number of its holders: slots that read it, and the prefix tree.

A block is written only while it has one holder; it is free when it has none.
"""

from __future__ import annotations

from collections.abc import Callable


class BlockPool:
    """Hands out block numbers 0 .. size - 1.

    shared: called with a block that gets a second holder, or is left with one.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.holders = [0] * size
        self.shared: Callable[[int], None] | None = None
        self._free = list(range(size - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """A free block, which now has one holder. Raises IndexError if there is none; callers check `free`
        first.
        """
        block = self._free.pop()
        self.holders[block] = 1
        return block

    def hold(self, block: int) -> None:
        """Adds a holder to a block that has one."""
        if self.holders[block] < 1:
            raise ValueError(f"block {block} is free: it cannot be shared")
        self.holders[block] += 1
        if self.holders[block] == 2 and self.shared is not None:
            self.shared(block)

    def drop(self, block: int) -> None:
        """Removes a holder."""
        if self.holders[block] < 1:
            raise ValueError(f"block {block} is free already")
        self.holders[block] -= 1
        left = self.holders[block]
        if not left:
            self._free.append(block)
        elif left == 1 and self.shared is not None:
            self.shared(block)
