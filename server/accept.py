"""The server's own accept loop, and uvicorn's server with it.

When no file descriptor is left, asyncio's loop retries accept up to 2,048 times and logs each failure; it
also does not count connections in their TLS handshake. Here a connection takes a seat (connections.py) at
accept, and when no descriptor is left the loop closes one connection that can give way and waits.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

import uvicorn

from satchel.server.addresses import Proxies, client_of
from satchel.server.connections import Connections, Rank, Seat, rank_of_incomplete
from satchel.server.log import LOG

NOTHING_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
FAILED = 3  # uvicorn's exit code for a failed start
PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds between attempts when no descriptor is left; doubled each time


class Handshake:
    """Holds a seat from accept until the HTTP protocol takes it over."""

    def __init__(self, began: float, seconds: float, cuts: Callable[[str], None]) -> None:
        self.began, self.seconds, self._cuts = began, seconds, cuts
        self.task: asyncio.Task[None] | None = None

    def rank(self, now: float) -> Rank | None:
        return rank_of_incomplete(self.began, now)

    def check(self, now: float) -> None:
        if now - self.began > self.seconds:
            self.cut("header")

    def cut(self, reason: str) -> None:
        self._cuts(reason)
        if self.task is not None:
            self.task.cancel()


def stop_listening(bound: socket.socket) -> None:
    """Closes a listening socket, and removes the file of a Unix one. Until it is closed no other server takes
    the path, so the file removed is its own.
    """
    if bound.fileno() < 0:
        return
    if hasattr(socket, "AF_UNIX") and bound.family == socket.AF_UNIX:
        with suppress(OSError):  # another program has removed it
            Path(bound.getsockname()).unlink()
    bound.close()


class Listener:
    """Accepts connections of a bound socket.

    make: returns the protocol object for a seat. seconds: the deadline of a TLS handshake.
    """

    def __init__(
        self,
        bound: socket.socket,
        connections: Connections,
        proxies: Proxies,
        make: Callable[[Seat], asyncio.BaseProtocol],
        secure: ssl.SSLContext | None,
        seconds: float,
    ) -> None:
        self.bound, self.connections, self.proxies = bound, connections, proxies
        self.make, self.secure, self.seconds = make, secure, seconds
        self._beginning: set[asyncio.Task[None]] = set()
        bound.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        stop_listening(self.bound)
        self._accepting.cancel()
        for task in self._beginning:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._accepting, *self._beginning, return_exceptions=True)

    async def _accept(self) -> None:
        loop, pause = asyncio.get_running_loop(), PAUSE
        while True:
            try:
                connection, address = await loop.sock_accept(self.bound)
            except OSError as error:
                if error.errno in NOTHING_LEFT:
                    LOG.error("no connection can be accepted: %s", error.strerror)
                    self.connections.make_room("descriptors")
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
                    continue
                if self.bound.fileno() < 0:
                    return
                LOG.debug("a connection ended before it was accepted: %s", error)
            else:
                pause = PAUSE
                try:
                    self._begin(connection, address)
                except Exception:  # a failure on one connection must not end the accept loop
                    LOG.exception("a connection was not taken")
                    connection.close()
            await asyncio.sleep(0)  # other tasks run even in a flood of connections

    def _begin(self, connection: socket.socket, address: object) -> None:
        peer = str(address[0]) if isinstance(address, tuple) else ""
        client = "" if not peer or self.proxies.trusts(peer) else client_of(peer)
        seat = self.connections.admit(client)

        def note(reason: str) -> None:
            self.connections.cuts[reason] += 1

        held = seat.holder = Handshake(seat.since, self.seconds, note)

        def done(task: asyncio.Task[None]) -> None:
            self._beginning.discard(task)
            error = None if task.cancelled() else task.exception()
            if task.cancelled() or error is not None:
                LOG.debug("a connection ended in its handshake: %s", error or "cut")
                self.connections.release(seat)
                with suppress(OSError):
                    connection.close()

        task = held.task = asyncio.create_task(self._connect(connection, seat))
        self._beginning.add(task)
        task.add_done_callback(done)

    async def _connect(self, connection: socket.socket, seat: Seat) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: self.make(seat),
            connection,
            ssl=self.secure,
            ssl_handshake_timeout=self.seconds if self.secure else None,
        )


class AcceptingServer(uvicorn.Server):
    """uvicorn's server with this accept loop. stopping: called as soon as a stop signal arrives."""

    def __init__(
        self,
        config: uvicorn.Config,
        connections: Connections,
        proxies: Proxies,
        handshake_seconds: float,
        stopping: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._stopping = stopping
        self._connections, self._proxies, self._seconds = connections, proxies, handshake_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(FAILED)
        listeners = [
            Listener(s, self._connections, self._proxies, self._protocol, self.config.ssl, self._seconds)
            for s in sockets or ()
        ]
        self.servers = listeners  # type: ignore[assignment]  # uvicorn calls close() and wait_closed() only
        self.started = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._stopping()
        super().handle_exit(sig, frame)

    def _protocol(self, seat: Seat) -> asyncio.BaseProtocol:
        make: Callable[..., asyncio.BaseProtocol] = self.config.http_protocol_class
        return make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state, seat=seat
        )
