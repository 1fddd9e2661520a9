"""Which cached prefixes the members of a fleet have, exactly: each member tells the digests of the blocks
that its prefix tree or its host tier took, and of those that both gave up.

Digests are those of runtime/kv/digests.py under a key of the fleet, which no client knows; a request's salt
is in them, so that users stay apart here too. They are cut to SHORT bytes: a false match would cost time,
never an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from satchel.errors import DeviceError
from satchel.runtime.kv.digests import SHORT
from satchel.runtime.kv.news import MOST_TOLD

MOST_KNOWN = 1 << 20  # blocks that a member may have: 32 million tokens


class Known:
    """The blocks of one member: those that it told of, and those that its requests are about to compute."""

    def __init__(self) -> None:
        self._blocks: set[bytes] = set()
        self._coming: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._blocks)

    def told(self, message: Any) -> None:
        """Blocks came or went. Raises DeviceError for what no member tells."""
        try:
            kept, gone = message["kept"], message["gone"]
            if len(kept) + len(gone) > MOST_TOLD:
                raise ValueError(f"{len(kept) + len(gone)} digests")
            came, left = set(map(_digest, kept)), set(map(_digest, gone))
        except (TypeError, ValueError, LookupError) as error:
            raise DeviceError(f"the worker process told of blocks what cannot be read: {error}") from None
        self._blocks -= left
        self._blocks |= came
        if len(self._blocks) > MOST_KNOWN:
            raise DeviceError(f"the worker process told of more than {MOST_KNOWN:,} blocks")

    def clear(self) -> None:
        self._blocks.clear()

    def expect(self, digests: Iterable[bytes]) -> None:
        """A request with these blocks is on its way to the member."""
        self._coming.update(digests)

    def ended(self, digests: Iterable[bytes]) -> None:
        """The request has ended or left."""
        self._coming.subtract(digests)
        for digest in digests:
            if self._coming[digest] <= 0:
                del self._coming[digest]

    def cached(self, digests: Sequence[bytes]) -> int:
        """Leading blocks of a prompt that the member has, or computes now.

        A digest stands for its block and all before it, and a member tells it only while a prompt can go on
        after it. So the last one decides: layers with states keep few of the blocks before.
        """
        for length in range(len(digests), 0, -1):
            if digests[length - 1] in self._blocks or digests[length - 1] in self._coming:
                return length
        return 0


def _digest(text: Any) -> bytes:
    found = bytes.fromhex(text)
    if len(found) != SHORT:
        raise ValueError(f"a digest of {len(found)} bytes, expected {SHORT}")
    return found
