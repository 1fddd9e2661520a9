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


class Holders:
    """Which members have each block, so that those with a prompt's prefix are found without asking all. Not
    thread-safe.
    """

    def __init__(self) -> None:
        self._members: dict[bytes, dict[str, None]] = {}

    def __len__(self) -> int:
        """Blocks that any member has."""
        return len(self._members)

    def put(self, digest: bytes, member: str) -> None:
        self._members.setdefault(digest, {})[member] = None

    def drop(self, digest: bytes, member: str) -> None:
        names = self._members.get(digest)
        if names is not None:
            names.pop(member, None)
            if not names:
                del self._members[digest]

    def of(self, digests: Sequence[bytes]) -> Sequence[str]:
        """The members with the longest prefix of a prompt that any has; () if none has a block of it."""
        for digest in reversed(digests):
            if names := self._members.get(digest):
                return tuple(names)
        return ()


class Known:
    """The blocks of one member: those that it told of, and those that its requests are about to compute.

    holders: an index over all members, which this keeps up to date. member: the name in it.
    """

    def __init__(self, holders: Holders | None = None, member: str = "") -> None:
        self._blocks: set[bytes] = set()
        self._coming: Counter[bytes] = Counter()
        self._holders, self._member = Holders() if holders is None else holders, member

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
        self._note(left | came)
        if len(self._blocks) > MOST_KNOWN:
            raise DeviceError(f"the worker process told of more than {MOST_KNOWN:,} blocks")

    def _note(self, digests: Iterable[bytes]) -> None:
        """Tells the index whether the member has these."""
        for digest in digests:
            if digest in self._blocks or digest in self._coming:
                self._holders.put(digest, self._member)
            else:
                self._holders.drop(digest, self._member)

    def clear(self) -> None:
        """The member's cache is gone."""
        gone, self._blocks = self._blocks, set()
        self._note(gone)

    def expect(self, digests: Iterable[bytes]) -> None:
        """A request with these blocks is on its way to the member."""
        self._coming.update(digests)
        self._note(digests)

    def ended(self, digests: Iterable[bytes]) -> None:
        """The request has ended or left."""
        self._coming.subtract(digests)
        for digest in digests:
            if self._coming[digest] <= 0:
                del self._coming[digest]
        self._note(digests)

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
