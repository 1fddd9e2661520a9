"""Where engines of other hosts join a fleet: keeps its roster (runtime/fleet/roster.py) and tells the fleet
who comes, who is to leave and who is gone.

Each message of an engine has one answer. A lease does not end with the connection on which it was given: an
engine that connects again in time goes on with it.

Invariant: the watcher hears of every member in order: that it came, perhaps that it is to leave, that it is
gone. One lock guards the roster, and the watcher is called with it, so it must not wait.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from satchel.errors import RequestError
from satchel.runtime.engine.watchdog import ticking
from satchel.runtime.fleet.roster import Hello, Listed, Roster
from satchel.runtime.log import LOG
from satchel.runtime.net.address import Address, read_address
from satchel.runtime.net.key_server import CLIENT, KeyServer
from satchel.runtime.net.link import Link, LinkDeadlines, LinkError, Message
from satchel.runtime.net.remote_process import protocol

PORT = 8095  # where a server listens for engines
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LOOK = 0.2  # seconds between two looks at the leases


class RosterWatcher(Protocol):
    """Who hears of the members."""

    def came(self, member: Listed) -> None: ...

    def retiring(self, name: str) -> None:
        """The member is to get no more requests."""

    def gone(self, name: str, lost: bool) -> None:
        """The member left, or was lost: its lease ended, or it was begun anew."""


class RosterServer(KeyServer):
    """Listens for engines that hold the key. lease: seconds that a heartbeat holds."""

    def __init__(
        self,
        address: Address,
        key: bytes,
        watcher: RosterWatcher,
        lease: float,
        deadlines: LinkDeadlines = CLIENT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watcher, self._clock = watcher, clock
        self._roster, self._guard, self._over = Roster(protocol(), lease), threading.Lock(), threading.Event()
        self.lease = lease
        super().__init__(address, key, deadlines, most=1024)
        ticking(self.look, self._over, "satchel-roster", LOOK)

    def session(self, link: Link, peer: str) -> RosterSession:
        return RosterSession(self, link, peer)

    def look(self) -> None:
        """Tells the watcher of leases that have ended."""
        with self._guard:
            self._deliver()

    def members(self) -> dict[str, Listed]:
        """Those whose lease holds."""
        with self._guard:
            return self._roster.members(self._clock())

    def close(self) -> None:
        self._over.set()
        super().close()

    def answer(self, message: Message, peer: str) -> Message:
        """Does what an engine says. Raises LinkError for what no engine says."""
        now = self._clock()
        with self._guard:
            try:
                if "join" in message:
                    told = self._admit(read_hello(message["join"], peer), now)
                else:
                    told = self._member(message, now)
            finally:
                self._deliver()
        return told

    def _admit(self, hello: Hello, now: float) -> Message:
        try:
            lease = self._roster.admit(hello, now)
        except RequestError as error:
            LOG.warning("%s", error)
            return {"refused": str(error)}
        return {"lease": lease.epoch, "seconds": self.lease}

    def _member(self, message: Message, now: float) -> Message:
        """What a member says: a sign of life, that it is to leave, or that it left."""
        kind = next((kind for kind in ("beat", "drain", "leave") if kind in message), "")
        name, epoch, report = message.get(kind), message.get("epoch"), message.get("report", {})
        if not (isinstance(name, str) and type(epoch) is int and isinstance(report, dict)):
            raise LinkError(f"expected a member's name and epoch, got {str(message)!a:.80}")
        if kind == "leave":
            self._roster.leave(name, epoch, now)
            return {"left": 1}
        lease = self._roster.heartbeat(name, epoch, now, report)
        if lease is None:
            return {"gone": 1}
        if kind == "drain" and self._roster.drain(name, epoch, now):
            self._watcher.retiring(name)
        return {"lease": lease.epoch, "seconds": self.lease}

    def _deliver(self) -> None:
        """Tells the watcher what changed. The lock is held."""
        now = self._clock()
        changes, members = self._roster.changes(now), self._roster.members(now)
        for name in changes.left:
            self._watcher.gone(name, lost=False)
        for name in changes.lost:
            self._watcher.gone(name, lost=True)
        for name in dict.fromkeys(changes.joined):
            if name in members:
                self._watcher.came(members[name])


class RosterSession:
    """The connection of an engine."""

    def __init__(self, server: RosterServer, link: Link, peer: str) -> None:
        self._server, self._link, self._peer, self.over = server, link, peer, threading.Event()

    def serve(self) -> None:
        try:
            while True:
                message, _ = self._link.receive()
                self._link.send(self._server.answer(message, self._peer))
        except LinkError as error:
            LOG.debug("%s: %s", self._peer, error)
        finally:
            self.over.set()

    def end(self) -> None:
        self._link.close()


def read_hello(told: Any, peer: str) -> Hello:
    """What an engine says of itself. peer: its address, where it names none. Raises LinkError for what no
    engine says.
    """
    if isinstance(told, dict):
        name, address, version = told.get("name"), told.get("address"), told.get("version")
        if isinstance(name, str) and NAME.fullmatch(name) and isinstance(version, str):
            try:
                host, port = read_address(str(address).replace("*", peer, 1))
            except RequestError as error:
                raise LinkError(str(error)) from None
            return Hello(name, f"{host}:{port}", version[:64], told.get("replaces") is True)
    raise LinkError(f"expected the name, address and version of an engine, got {str(told)!a:.80}")
