"""All connections of a server: how many there may be, in all and of one client, and which one gives way when
a newcomer finds no seat.

A connection in which a request is being answered never gives way. Each of the others can be closed at any
time: it is idle, its request is incomplete, or its client does not read. So an attacker that only holds
connections open displaces his own, and a newcomer is always let in. When all seats are taken by requests
under way, newcomers get one of a few spare seats, on which health probes are answered and all else is told to
come later. Runs on the event loop's thread alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from satchel.server.log import LOG

SPARE = 16  # seats for health probes when all others are taken
REBUILD = 0.05  # seconds until connections that can give way are looked for again where there were none
TICK = 0.5  # seconds between two checks of all deadlines
CUTS = ("header", "body", "idle", "write", "pipelined", "room", "descriptors", "broken")

Rank = tuple[int, float]  # what gives way first is smallest


class Holder(Protocol):
    """What has a seat."""

    def rank(self, now: float) -> Rank | None:
        """None: it does not give way."""

    def check(self, now: float) -> None:
        """Cuts itself where a deadline has passed."""

    def cut(self, reason: str) -> None:
        """Closes without waiting. reason: one of CUTS."""


class Seat:
    """A connection's place. client: as `client_of` names it; "" for Unix sockets and trusted proxies, which
    have no limit of their own. spare: health probes alone are answered. holder: None until there is one.
    """

    __slots__ = ("client", "closed", "holder", "home", "since", "spare")

    def __init__(self, client: str, spare: bool, since: float) -> None:
        self.client = self.home = client
        self.spare, self.since = spare, since
        self.holder: Holder | None = None
        self.closed = False


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """most: connections with a regular seat. each: of one client; above it his own give way."""

    most: int
    each: int


class Connections:
    """The seats. cuts: connections closed by the server, by reason. refused: requests that found only a spare
    seat. tick: seconds between two checks. clock: gives the seconds by which all deadlines are kept.
    """

    def __init__(
        self, limits: ConnectionLimits, tick: float = TICK, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits, self.tick, self.clock = limits, tick, clock
        self.cuts: Counter[str] = Counter()
        self.refused = 0
        self._seats: set[Seat] = set()
        self._spares: dict[Seat, None] = {}
        self._clients: defaultdict[str, set[Seat]] = defaultdict(set)
        # By client ("": of all): seats that can give way, the next one last, and when there were none.
        self._queues: dict[str, list[Seat]] = {}
        self._none: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def open(self) -> int:
        return len(self._seats) + len(self._spares)

    def admit(self, client: str) -> Seat:
        """A seat for a new connection: a regular one, if need be of one that gives way, or a spare one."""
        now = self.clock()
        self._watch()
        room = not client or self._room(client, len(self._clients[client]) >= self.limits.each, now)
        if not self._clients[client]:
            del self._clients[client]
        if room and self._room("", len(self._seats) >= self.limits.most, now):
            seat = Seat(client, False, now)
            self._seats.add(seat)
            if client:
                self._clients[client].add(seat)
            return seat
        if len(self._spares) >= SPARE:
            self._displace(next(iter(self._spares)), "room")
        seat = Seat(client, True, now)
        self._spares[seat] = None
        return seat

    def enter(self, seat: Seat, client: str) -> bool:
        """Counts a request that a proxy passed on for the client whose it is. False: he has too many."""
        now = self.clock()
        if seat.spare or not self._room(client, len(self._clients[client]) >= self.limits.each, now):
            return False
        seat.client = client
        self._clients[client].add(seat)
        return True

    def leave(self, seat: Seat) -> None:
        """The request that entered is over: the connection is the proxy's again."""
        if seat.client != seat.home:
            self._forget(seat)
            seat.client = seat.home

    def release(self, seat: Seat) -> None:
        """The connection is closed and nothing of it runs any more."""
        seat.closed = True
        self._seats.discard(seat)
        self._spares.pop(seat, None)
        self._forget(seat)

    def make_room(self, reason: str) -> bool:
        """Closes one connection that can give way; whether there was one."""
        return self._give_way("", self.clock(), reason)

    def check(self) -> None:
        """Cuts what is behind its deadline. A check that fails keeps no other from being made."""
        now = self.clock()
        for seat in (*self._seats, *self._spares):
            if seat.holder is not None:
                try:
                    seat.holder.check(now)
                except Exception:
                    LOG.exception("a connection's deadline could not be checked: it is cut")
                    seat.holder.cut("broken")

    def _room(self, client: str, full: bool, now: float) -> bool:
        if not full:
            return True
        LOG.warning(
            "no seat is free %s: what waits longest without a request gives way",
            f"for {client}, which has {self.limits.each} connections" if client else "for a new connection",
        )
        return self._give_way(client, now, "room")

    def _give_way(self, client: str, now: float, reason: str) -> bool:
        for fresh in (False, True):
            queue = self._queue(client, now) if fresh else self._queues.get(client, [])
            while queue:
                seat = queue.pop()
                if not seat.closed and _rank(seat, now) is not None:
                    self._displace(seat, reason)
                    return True
        return False

    def _queue(self, client: str, now: float) -> list[Seat]:
        """Ranks the seats once more: each look at all of them must find some, or is not repeated soon."""
        if now - self._none.get(client, float("-inf")) < REBUILD:
            return []
        if len(self._queues) + len(self._none) > self.limits.most:  # of clients that are gone
            self._queues.clear()
            self._none.clear()
        queue = self._queues[client] = self._ranked(self._clients[client] if client else self._seats, now)
        if not queue:
            self._none[client] = now
        return queue

    def _ranked(self, seats: Iterable[Seat], now: float) -> list[Seat]:
        """Those that can give way, last the one that does so first: of the client with most connections, and
        of these the one with the smallest rank.
        """
        found = [(rank, seat) for seat in seats if (rank := _rank(seat, now)) is not None]
        found.sort(key=lambda pair: (-len(self._clients.get(pair[1].client, ())), pair[0]), reverse=True)
        return [seat for _, seat in found]

    def _displace(self, seat: Seat, reason: str) -> None:
        holder = seat.holder
        self.release(seat)
        if holder is not None:
            holder.cut(reason)

    def _forget(self, seat: Seat) -> None:
        if seat.client in self._clients:
            self._clients[seat.client].discard(seat)
            if not self._clients[seat.client]:
                del self._clients[seat.client]

    def _watch(self) -> None:
        """Checks deadlines from now on, for as long as there are connections."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.tick, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self.open:
            self._watch()
        self.check()


def _rank(seat: Seat, now: float) -> Rank | None:
    return seat.holder.rank(now) if seat.holder is not None else None
