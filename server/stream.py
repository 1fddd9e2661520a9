"""Streaming responses over HTTP: server-sent events or NDJSON, with pings during silence; generation is
cancelled when the client disconnects.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from satchel.errors import SatchelError
from satchel.server.flavour import flavour_of
from satchel.server.log import LOG
from satchel.server.problem import problem_of
from satchel.server.text_frame import LINE_ENDS

T = TypeVar("T")

PING_SECONDS = 15.0
PATIENCE = 10.0  # seconds in which a failure still gets an HTTP error status; after that the stream begins
PIECE = "satchel.piece"  # extension of a request's scope: its DirectWriter
EVENTS, LINES = "text/event-stream", "application/x-ndjson"


def dumps(data: Any) -> str:
    """JSON on one line, also for clients that split at Unicode line separators."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text if text.isascii() else text.translate(LINE_ENDS)


def event(data: Any, kind: str = "") -> bytes:
    """A server-sent event with JSON data. kind: the event's name, "" for none."""
    text = dumps(data)
    return (f"event: {kind}\ndata: {text}\n\n" if kind else f"data: {text}\n\n").encode()


def line(data: Any) -> bytes:
    """A line of NDJSON."""
    return dumps(data).encode() + b"\n"


class Recallable(Protocol):
    """A stream that another process writes."""

    def recall(self) -> None:
        """Has the process give it back soon."""


class DirectWriter(Protocol):
    """Writes later chunks of a stream to its connection at once, past the layers between.

    at: monotonic time of the last chunk.
    """

    at: float

    def __call__(self, data: bytes) -> bool:
        """Writes a chunk. False: it must take the way through `send`, which waits for a client that reads
        slowly.
        """

    @property
    def descriptor(self) -> int:
        """The connection's, to which another process may write now; -1 where it may not."""

    def leased(self, to: Recallable | None) -> None:
        """Notes that another process writes to the connection; None: no other does any more."""

    async def own(self) -> None:
        """Waits until no other process writes to the connection."""

    def raw(self, data: bytes) -> None:
        """Writes what is left of a chunk that another process has begun."""

    def abort(self) -> None:
        """Cuts the connection."""


class Stream(Response):
    """A response that sends each chunk of an iterator at once.

    A client that hangs up ends the iterator. close: awaited at the end in every case. ping: bytes to send
    during silence, b"" for none.
    """

    def __init__(
        self,
        bits: AsyncIterator[bytes],
        close: Callable[[], Awaitable[None]],
        media_type: str = EVENTS,
        ping: bytes = b": ping\n\n",
        ping_seconds: float = PING_SECONDS,
    ) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self.headers["cache-control"], self.headers["x-accel-buffering"] = "no-cache", "no"
        self._bits, self._close, self._ping = bits, close, ping if media_type == EVENTS else b""
        self._at, self._silence = time.monotonic(), ping_seconds
        self._direct: DirectWriter | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks = [asyncio.create_task(self._send(scope, send)), asyncio.create_task(hung_up(receive))]
        if self._ping:
            tasks.append(asyncio.create_task(self._keep_alive(send)))
        try:
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await tasks[0]
            await self._close()

    async def _send(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        write: Callable[[bytes], bool] = none_written  # middleware sees the first chunk
        async for bit in self._late(scope["path"]):
            self._at = time.monotonic()
            if not write(bit):
                await send({"type": "http.response.body", "body": bit, "more_body": True})
                self._direct = scope.get("extensions", {}).get(PIECE)
                write = self._direct or none_written
        self._ping = b""
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_alive(self, send: Send) -> None:
        """Sends pings. Each chunk holds whole events, so a ping between two of them is safe."""
        while self._ping:
            await asyncio.sleep(self._silence)
            last = max(self._at, self._direct.at) if self._direct else self._at
            if self._ping and time.monotonic() - last >= self._silence:
                if self._direct:
                    await self._direct.own()
                await send({"type": "http.response.body", "body": self._ping, "more_body": True})

    async def _late(self, path: str) -> AsyncIterator[bytes]:
        """The chunks of the iterator; an exception becomes an error event of the API flavour."""
        try:
            async for bit in self._bits:
                yield bit
        except Exception as error:
            if not isinstance(error, SatchelError):
                LOG.exception("a stream failed")
            yield flavour_of(path).late(problem_of(error))


def none_written(data: bytes) -> bool:
    """Stands in for PIECE where the server has none."""
    return False


async def hung_up(receive: Receive) -> None:
    """Returns when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result. The work is cancelled where the client hangs up."""
    task, gone = asyncio.create_task(work), asyncio.create_task(hung_up(request.receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
        return await task
    finally:
        task.cancel()
        gone.cancel()


class Closing(Protocol):
    """The source of a stream, which the stream closes at its end."""

    async def close(self) -> None: ...


A = TypeVar("A", bound=Closing)


async def stream_of(
    request: Request,
    work: Coroutine[Any, Any, A],
    bits: Callable[[A], AsyncIterator[bytes]],
    *,
    early: asyncio.Queue[bytes] | None = None,
    media_type: str = EVENTS,
    ping: bytes = b": ping\n\n",
    ping_seconds: float = PING_SECONDS,
) -> Stream:
    """A streaming response of the work's result.

    A failure of the work within PATIENCE seconds is raised here; after that the stream begins and reports it
    as an event. early: chunks to send before the result is there; the first one begins the stream.
    """
    task, gone = asyncio.create_task(work), asyncio.create_task(hung_up(request.receive))
    news: asyncio.Task[bytes] | None = asyncio.create_task(early.get()) if early else None
    try:
        waited = [t for t in (task, gone, news) if t is not None]
        await asyncio.wait(waited, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        elif gone.done():
            task.cancel()
            await task
    except BaseException:
        task.cancel()
        if news:
            news.cancel()
        raise
    finally:
        gone.cancel()
    coming = _coming(task, bits, early, news)
    return Stream(coming, partial(_drop, task), media_type, ping, ping_seconds)


async def _coming(
    task: asyncio.Task[A],
    bits: Callable[[A], AsyncIterator[bytes]],
    early: asyncio.Queue[bytes] | None,
    news: asyncio.Task[bytes] | None,
) -> AsyncIterator[bytes]:
    while news is not None and early is not None:
        await asyncio.wait((task, news), return_when=asyncio.FIRST_COMPLETED)
        if not news.done():
            news.cancel()
            break
        yield news.result()
        news = asyncio.create_task(early.get())
    async for bit in bits(await asyncio.shield(task)):
        yield bit


async def _drop(task: asyncio.Task[A]) -> None:
    """Cancels the work, or closes its result."""
    if not task.done():
        task.cancel()
    with suppress(Exception, asyncio.CancelledError):
        await (await task).close()
