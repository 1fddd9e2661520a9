"""An engine's side of a fleet's roster (`satchel engine --join`): joins, renews the lease by a heartbeat each
second, and joins anew when it was lost.

Invariant: when the lease has ended, the engine's sessions are ended too, because others have its requests by
then; so no engine computes for a fleet that counts it as lost.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from satchel.errors.threads import begin
from satchel.formats.resource import Resource
from satchel.runtime.fleet.roster import HEARTBEAT, LEASE
from satchel.runtime.log import LOG
from satchel.runtime.net.address import Address
from satchel.runtime.net.device import deadlines
from satchel.runtime.net.engine_server import EngineServer
from satchel.runtime.net.link import Link, LinkError, Message, greet
from satchel.runtime.net.remote_process import protocol

PAUSE = 0.5  # seconds between two tries to join


@dataclass(frozen=True, slots=True)
class Joining:
    """at: the address of the roster. name: of the member. host: at which others reach the engine; "": the one
    from which it reaches the roster.
    """

    at: Address
    key: bytes
    name: str
    host: str = ""


class RosterClient(Resource):
    """Keeps an engine server in a roster until it is closed.

    lost: called when the lease has ended, before it joins anew; None: ends the server's sessions. alone:
    seconds since the roster last answered.
    """

    def __init__(
        self, server: EngineServer, joining: Joining, lost: Callable[[], object] | None = None
    ) -> None:
        self._server, self._joining = server, joining
        self._lost = lost or server.end_sessions
        self._epoch, self._lease, self._was = 0, LEASE, False  # was: it has been a member before
        self._renewed = self._answered = time.monotonic()
        self._wake, self._over = threading.Event(), threading.Event()
        self._draining, self._left = False, False
        self.trouble = ""  # why it is not a member
        self._told = ""
        self._thread = threading.Thread(target=self._run, name="satchel-member", daemon=True)
        begin(self._thread)

    @property
    def joined(self) -> bool:
        return self._epoch > 0

    @property
    def alone(self) -> float:
        return time.monotonic() - self._answered

    def drain(self, seconds: float) -> bool:
        """Gets no more requests, waits until those that it has are done, at most `seconds`, and leaves.
        Returns whether they were done.
        """
        self._draining = True
        self._wake.set()
        done = self._server.await_idle(seconds) if self.joined else True
        self.close()
        return done

    def close(self) -> None:
        """Leaves at once: requests go on elsewhere."""
        self._over.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with self._connect() as link:
                    self._serve(link)
            except (LinkError, OSError) as error:
                self._say(f"{self._joining.at} cannot be reached: {error}")
            self._expire()
            self._over.wait(PAUSE)

    def _connect(self) -> Link:
        wait = deadlines()
        sock = socket.create_connection(self._joining.at, wait.handshake)
        try:
            return greet(sock, self._joining.key, wait)
        except BaseException:
            sock.close()
            raise

    def _serve(self, link: Link) -> None:
        """Says what is to be said, until the end or until it is refused."""
        while True:
            if not self._epoch and not self._join(link):
                return
            told = "leave" if self._over.is_set() else "drain" if self._draining else "beat"
            message = {told: self._joining.name, "epoch": self._epoch, "report": self._server.report()}
            answer = self._ask(link, message)
            if told == "leave":
                self._epoch = 0
                return
            if "lease" in answer:
                self._renew(answer)
            else:
                self._drop()
                continue
            self._wake.wait(HEARTBEAT)
            self._wake.clear()

    def _join(self, link: Link) -> bool:
        if self._over.is_set() or self._draining:
            return False
        host = self._joining.host or "*"
        address = f"[{host}]:{self._server.port}" if ":" in host else f"{host}:{self._server.port}"
        told = {"name": self._joining.name, "address": address, "version": protocol(), "replaces": self._was}
        answer = self._ask(link, {"join": told})
        if "lease" not in answer:
            self._say(f"{self._joining.at} refuses this engine: {answer.get('refused')}")
            return False
        self._epoch, self._was, self.trouble, self._told = int(answer["lease"]), True, "", ""
        self._renew(answer)
        LOG.info("joined the fleet at %s as %s", self._joining.at, self._joining.name)
        return True

    def _ask(self, link: Link, message: Message) -> Message:
        link.send(message)
        answer, _ = link.receive()
        self._answered = time.monotonic()
        return answer

    def _renew(self, answer: Message) -> None:
        self._renewed, self._lease = time.monotonic(), float(answer.get("seconds", LEASE))

    def _expire(self) -> None:
        """The lease may have ended while the roster could not be reached."""
        if self._epoch and time.monotonic() - self._renewed > self._lease:
            self._drop()

    def _drop(self) -> None:
        self._epoch = 0
        self._say(f"the lease of {self._joining.at} has ended: its requests are dropped")
        self._lost()

    def _say(self, trouble: str) -> None:
        self.trouble = trouble
        if trouble != self._told:  # once, and not with each try
            LOG.warning("%s", trouble)
        self._told = trouble
