"""Who is in a fleet, for members on other hosts: each renews a lease by a heartbeat every second, and is
lost when the lease ends, three seconds after its last one.

Invariant: a pure function of what it was told and of the time given with it. A member whose lease has ended
is gone for good: it comes back only by joining anew, with a higher epoch, so that a late heartbeat of what
was replaced changes nothing and no request is answered twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from satchel.errors import RequestError

HEARTBEAT = 1.0  # seconds between heartbeats
LEASE = 3.0  # seconds that a heartbeat holds


class Hello(NamedTuple):
    """What a member says of itself when it joins."""

    name: str
    address: str
    version: str  # hash of the wire's messages, the ABI and the model: equal, or the two cannot work together
    replaces: bool = False  # begun anew: the one of this name is gone, whatever its lease says


class MemberLease(NamedTuple):
    """What a member holds: it serves a front only until `ends`."""

    epoch: int
    ends: float  # seconds, on the clock of who gave it


class Listed(NamedTuple):
    hello: Hello
    lease: MemberLease
    report: Mapping[str, object]  # as the last heartbeat brought it
    draining: bool


class Changes(NamedTuple):
    """Members that came and went since the last look."""

    joined: tuple[str, ...]
    left: tuple[str, ...]  # as they said
    lost: tuple[str, ...]  # their lease ended, or they were begun anew: their requests go to others


@dataclass(slots=True)
class Roster:
    """version: that members must have."""

    version: str
    lease: float = LEASE
    _members: dict[str, Listed] = field(default_factory=dict)
    _epoch: int = 0
    _joined: list[str] = field(default_factory=list)
    _left: list[str] = field(default_factory=list)
    _lost: list[str] = field(default_factory=list)

    def admit(self, hello: Hello, now: float) -> MemberLease:
        """A member comes. Raises RequestError if its version differs or its name is taken."""
        self._expire(now)
        if hello.version != self.version:
            raise RequestError(
                f"member {hello.name} at {hello.address}: expected version {self.version}, "
                f"got {hello.version}: the two run different builds or models; update one, or start it in a "
                "fleet of its own"
            )
        before = self._members.get(hello.name)
        if before is not None and not hello.replaces:
            raise RequestError(
                f"member {hello.name} at {hello.address}: the name is taken by {before.hello.address} for "
                f"{before.lease.ends - now:.1f} s more; name it otherwise, or wait"
            )
        if before is not None:
            self._lost.append(hello.name)
        self._epoch += 1
        lease = MemberLease(self._epoch, now + self.lease)
        self._members[hello.name] = Listed(hello, lease, MappingProxyType({}), False)
        self._joined.append(hello.name)
        return lease

    def heartbeat(
        self, name: str, epoch: int, now: float, report: Mapping[str, object]
    ) -> MemberLease | None:
        """Renews a lease; None if it has ended or is another's: the member must drop its requests, which
        others have by now, and join anew.
        """
        self._expire(now)
        listed = self._members.get(name)
        if listed is None or listed.lease.epoch != epoch:
            return None
        lease = MemberLease(epoch, max(listed.lease.ends, now + self.lease))
        self._members[name] = listed._replace(lease=lease, report=MappingProxyType(dict(report)))
        return lease

    def drain(self, name: str, epoch: int, now: float) -> bool:
        """The member takes no new requests, but ends those that it has; False if its lease has ended."""
        self._expire(now)
        listed = self._members.get(name)
        if listed is None or listed.lease.epoch != epoch:
            return False
        self._members[name] = listed._replace(draining=True)
        return True

    def leave(self, name: str, epoch: int, now: float) -> None:
        """The member goes, and has no requests."""
        self._expire(now)
        listed = self._members.get(name)
        if listed is not None and listed.lease.epoch == epoch:
            del self._members[name]
            self._left.append(name)

    def members(self, now: float) -> dict[str, Listed]:
        """All whose lease holds, in the order in which they joined."""
        self._expire(now)
        return dict(self._members)

    def changes(self, now: float) -> Changes:
        """What happened since the last call."""
        self._expire(now)
        found = Changes(tuple(self._joined), tuple(self._left), tuple(self._lost))
        self._joined, self._left, self._lost = [], [], []
        return found

    def _expire(self, now: float) -> None:
        ended = [name for name, listed in self._members.items() if listed.lease.ends <= now]
        for name in ended:
            del self._members[name]
        self._lost += ended
