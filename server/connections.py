"""The server's connection table: limits on connections in total and per client, and the choice of the
connection that is closed when a new one finds no seat.

A connection whose request is being answered is never closed for another. Every other connection can be closed
at any time: it is idle, its request is incomplete, or its client does not read. So an attacker that only
holds connections open displaces its own, and a new connection is always accepted. When requests in flight
hold all seats, a new connection gets one of a few spare seats, which answer health probes and refuse
everything else with 503. All methods run on the event loop's thread.
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
REBUILD = 0.05  # seconds before the next search after one that found no connection that can give way
TICK = 0.5  # seconds between two checks of a connection's deadlines
SLICES = 8  # parts in which all connections are checked, one after another, so that none holds the loop long
YOUNG = 2.0  # seconds that a connection has for its first bytes before it gives way to others
CUTS = ("header", "body", "idle", "write", "pipelined", "room", "descriptors", "broken")

Rank = tuple[int, float]  # the smallest rank gives way first


def rank_of_incomplete(since: float, now: float) -> Rank:
    """The rank of a connection that waits for a header since then. A young one gives way last: its request
    may have come, and the loop has not read it yet.
    """
    return (1 if now - since >= YOUNG else 4), since


class Holder(Protocol):
    """The object that uses a seat: a TLS handshake, then an HTTP connection."""

    def rank(self, now: float) -> Rank | None:
        """The order in which connections give way; None while this one must not be closed."""

    def check(self, now: float) -> None:
        """Cuts the connection where a deadline has passed."""

    def cut(self, reason: str) -> None:
        """Closes the connection without waiting. reason: one of CUTS."""


class Seat:
    """A connection's entry in the table.

    client: as `client_of` names it; "" for Unix sockets and trusted proxies, which have no limit per client.
    home: the client of the connection itself, where `client` is that of a proxied request.
    spare: the seat answers health probes only.
    """

    __slots__ = ("client", "closed", "holder", "home", "since", "spare")

    def __init__(self, client: str, spare: bool, since: float) -> None:
        self.client = self.home = client
        self.spare, self.since = spare, since
        self.holder: Holder | None = None
        self.closed = False


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits on regular seats."""

    most: int  # in total
    each: int  # per client; above it, one of the client's own connections gives way


class Connections:
    """The table of seats.

    cuts: number of connections that the server closed, by reason.
    refused: number of requests that found only a spare seat.
    tick: seconds between two checks of a connection's deadlines.
    clock: returns the time in seconds by which deadlines are measured.
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
        # By client, "" for all clients.
        self._queues: dict[str, list[Seat]] = {}  # seats that can give way, the next one last
        self._none: dict[str, float] = {}  # the time at which a search found none
        self._timer: asyncio.TimerHandle | None = None
        self._due: list[Seat] = []  # seats that this round of checks has not reached

    @property
    def open(self) -> int:
        return len(self._seats) + len(self._spares)

    def admit(self, client: str) -> Seat:
        """A seat for a new connection: a free regular one, that of a connection which gives way, or a spare
        one.
        """
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
        """Counts a proxied request for its client. False where the client has too many connections."""
        now = self.clock()
        if seat.spare or not self._room(client, len(self._clients[client]) >= self.limits.each, now):
            return False
        seat.client = client
        self._clients[client].add(seat)
        return True

    def leave(self, seat: Seat) -> None:
        """Ends a proxied request: the connection counts for the proxy again."""
        if seat.client != seat.home:
            self._forget(seat)
            seat.client = seat.home

    def release(self, seat: Seat) -> None:
        """Frees the seat of a connection that is closed and whose request has ended."""
        seat.closed, seat.holder = True, None
        self._seats.discard(seat)
        self._spares.pop(seat, None)
        self._forget(seat)

    def make_room(self, reason: str) -> bool:
        """Closes one connection that can give way. Returns whether there was one."""
        return self._give_way("", self.clock(), reason)

    def check(self) -> None:
        """Cuts connections past their deadline. An exception in one check does not stop the others."""
        self._check((*self._seats, *self._spares))

    def _check(self, seats: Iterable[Seat]) -> None:
        now = self.clock()
        for seat in seats:
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
        """Ranks the seats again. A search that finds none is not repeated for REBUILD seconds, which bounds
        its cost under a flood of connections.
        """
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
        """Seats that can give way, the next one last: the client with most connections first, and of one
        client the smallest rank first.
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
        """Starts the timer of the deadline checks, which runs while there are connections."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.tick / SLICES, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self.open:
            self._watch()
        self._due = self._due or [*self._seats, *self._spares]
        count = -(-self.open // SLICES)
        seats, self._due = self._due[:count], self._due[count:]
        self._check(seats)


def _rank(seat: Seat, now: float) -> Rank | None:
    return seat.holder.rank(now) if seat.holder is not None else None
