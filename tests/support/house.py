"""A server without a model, with inspectable connections and a simulated clock: deadlines pass when the test
advances the clock, so no verdict depends on the machine's speed. All checks read this one clock; real time
elsewhere would make a body late that began before the clock was advanced.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import uvicorn
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import PlainTextResponse, StreamingResponse
from uvicorn.protocols.http.h11_impl import H11Protocol
from waiting import joined, until

from satchel.runtime.api.options import Options
from satchel.server import app as app_module
from satchel.server.app import create_app
from satchel.server.bodies import JSON
from satchel.server.catalog import catalog_of
from satchel.server.connections import Connections
from satchel.server.flavour import routed
from satchel.server.models import Models
from satchel.server.roles import PUBLIC, needs
from satchel.server.run import listen, server_of
from satchel.server.settings import ServerSettings

SLOWER = 100  # factor on the usual deadlines, so that none passes by itself on any machine
LARGE = 2 << 20  # bytes: more than a socket buffers unread


class House:
    """The running server.

    bound: the listening socket. streams: streams in progress. asked: requests that wait for `open_door`.
    """

    def __init__(self, app: FastAPI, bound: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self.app, self.bound, self.loop = app, bound, loop
        self.connections: Connections = app.state.connections
        self.streams = self.asked = 0
        self.door = asyncio.Event()
        self._ahead = 0.0
        self.connections.clock = lambda: time.monotonic() + self._ahead

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.bound.getsockname()[1]}"

    def dial(self, data: bytes = b"", source: str = "127.0.0.1", window: int = 0) -> socket.socket:
        """A connection from this loopback address that has sent the data. window: the size of its receive
        buffer.
        """
        wire = socket.socket(self.bound.family)
        if window:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        wire.settimeout(60)
        if self.bound.family != getattr(socket, "AF_UNIX", None):
            wire.bind((source, 0))
        wire.connect(self.bound.getsockname())
        with suppress(OSError):  # the server may have cut the connection already
            wire.sendall(data)
        return wire

    def run(self, work: Any, *args: Any) -> Any:
        """Runs `work` on the loop's thread and returns its result."""

        async def call() -> Any:
            return work(*args)

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(60)

    def protocols(self) -> list[H11Protocol]:
        """Of the connections that have a seat."""
        return self.run(
            lambda: [seat.holder for seat in self.connections._seats if isinstance(seat.holder, H11Protocol)]
        )

    def later(self, seconds: float) -> None:
        """Checks deadlines now and again as if so many seconds had passed; seconds are those of a server with
        the usual deadlines.
        """
        self.run(self.connections.check)
        self._ahead += SLOWER * seconds
        self.run(self.connections.check)

    def open_door(self) -> None:
        self.run(self.door.set)


def _router(made: list[tuple[House, uvicorn.Server]]) -> APIRouter:
    """Public routes for the House that is created later."""
    router = APIRouter()

    @router.get("/wait")
    @needs(PUBLIC)
    async def wait() -> PlainTextResponse:
        house = made[0][0]
        house.asked += 1
        await house.door.wait()
        return PlainTextResponse("waited")

    @router.get("/large")
    @needs(PUBLIC)
    async def large() -> PlainTextResponse:
        return PlainTextResponse("x" * LARGE)

    @router.get("/whose")
    @needs(PUBLIC)
    async def whose(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.client.host if request.client else "unix")

    @router.post("/length")
    @needs(PUBLIC)
    async def length(request: Request) -> PlainTextResponse:
        _, size = request.scope["state"].get(JSON, (None, 0))  # the guard has read the body already
        return PlainTextResponse(str(size))

    @router.get("/endless")
    @needs(PUBLIC)
    async def endless() -> StreamingResponse:
        house = made[0][0]

        async def bits() -> AsyncIterator[bytes]:
            house.streams += 1
            try:
                while True:
                    yield b"x" * 4096
                    await asyncio.sleep(0)
            finally:
                house.streams -= 1

        return StreamingResponse(bits())

    return router


@contextmanager
def serving_house(settings: ServerSettings, secure: ssl.SSLContext | None = None) -> Iterator[House]:
    """A server with routes that wait, that send more than the client reads, and that never end."""
    settings = replace(
        settings,
        header_seconds=SLOWER * settings.header_seconds,
        body_seconds=SLOWER * settings.body_seconds,
        keep_alive=SLOWER * settings.keep_alive,
        write_seconds=SLOWER * settings.write_seconds,
        least_rate=settings.least_rate // SLOWER,
    )
    bound = listen(settings.host, settings.port, settings)
    started = threading.Event()
    made: list[tuple[House, uvicorn.Server]] = []
    own = SimpleNamespace(router=_router(made))
    with patch.object(app_module, "routed", lambda: [*routed(), own]):
        app = create_app(Models(catalog_of({}, {}, Options(), 0, None)), settings)

    async def main() -> None:
        house = House(app, bound, asyncio.get_running_loop())
        server = server_of(app, settings)
        server.config.load()
        server.config.ssl = secure
        server.config.timeout_graceful_shutdown = 1
        made.append((house, server))
        started.set()
        await server.serve([bound])

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert started.wait(60)
    house, server = made[0]
    until(lambda: server.started, "the server's start")
    try:
        yield house
    finally:
        house.open_door()
        server.should_exit = True
        joined(thread, "the server")


def heard(wire: socket.socket) -> bytes:
    """Everything that arrives until the other side closes."""
    found = b""
    with suppress(ConnectionError):
        while part := wire.recv(65536):
            found += part
    return found


def answered(wire: socket.socket, part: bytes) -> bool:
    """Whether a response with this part arrives; the bytes read so far are dropped."""
    found = b""
    with suppress(ConnectionError):
        while part not in found and (more := wire.recv(65536)):
            found += more
    return part in found


def closed(wire: socket.socket) -> bool:
    """Whether the other side has closed; bytes that arrive are dropped."""
    wire.setblocking(False)
    try:
        while wire.recv(1 << 20):
            pass
        return True
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        with suppress(OSError):
            wire.settimeout(60)
