"""uvicorn's HTTP/1.1 protocol with a deadline in every phase of a connection.

A connection is cut when the request header is late, the body comes below a minimum rate, an idle connection
stays too long, or the client reads the response below a minimum rate.

The phase is derived from the state of uvicorn and h11 at every tick of `Connections`. No timer is armed or
disarmed, so no order of events can leave a connection without a deadline.
"""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress
from typing import Any, cast

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from satchel.server.addresses import Proxies, client_of, is_forwarded
from satchel.server.connections import Connections, Rank, Seat, rank_of_incomplete
from satchel.server.flavour import flavour_of
from satchel.server.guard import refuse
from satchel.server.problem import Problem
from satchel.server.settings import ServerSettings
from satchel.server.stream import PIECE, Recallable

SLICE = 1 << 14  # bytes that h11 parses per turn of the event loop: small HTTP chunks cost 7 us each
MOST_HEADERS = 128
UNSENT = 1 << 16  # bytes of a response that the kernel buffers unsent
STALLED = 1.0  # seconds after which a connection whose client does not read can give way
HEALTH = frozenset(("/health", "/healthz", "/readyz", "/v1/health"))
LATE, MANY = (
    b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: 0\r\n\r\n" % status
    for status in (b"408 Request Timeout", b"431 Request Header Fields Too Large")
)


class Wire:
    """A transport that counts written bytes, and pauses reading while any of several parties asks for it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.written = 0
        self._stopped: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self.written += len(data)
        self._transport.write(data)

    def pause_reading(self, who: str = "uvicorn") -> None:
        self._stopped.add(who)
        self._transport.pause_reading()

    def resume_reading(self, who: str = "uvicorn") -> None:
        if who in self._stopped:
            self._stopped.discard(who)
            if not self._stopped:
                self._transport.resume_reading()


class Deadlines(H11Protocol):
    """One HTTP connection. seat: given where the connection was admitted before its TLS handshake."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        settings: ServerSettings,
        connections: Connections,
        proxies: Proxies,
        seat: Seat | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._settings, self._connections, self._proxies, self._seat = settings, connections, proxies, seat
        self._inner = cast(ASGIApp, self.app)
        self.app = cast(Any, self._admitted)
        self._coming = bytearray()  # received, not yet passed to h11
        self._again = False  # whether _feed is scheduled for the next turn of the loop
        self._requests = self._received = self._lines = 0
        self._running = self._lost = False
        # The phase and request number at the last look; its start time, and the bytes received by then.
        self._phase: tuple[str, int] = ("header", 0)
        self._since, self._base = 0.0, 0
        self._window: tuple[float, int] | None = None  # writing: the window's start, bytes sent by then
        self._pace = (0.0, 0)  # a body: the window's start, bytes received by then

    # Called by asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._wire = Wire(transport)
        super().connection_made(cast(asyncio.Transport, self._wire))
        wire = transport.get_extra_info("socket")
        peer = self.client[0] if self.client else ""
        unix = wire is not None and wire.family == getattr(socket, "AF_UNIX", None)
        self._trusted = unix or self._proxies.trusts(peer)
        if self._seat is None:
            self._seat = self._connections.admit("" if self._trusted else client_of(peer))
        elif self._seat.closed:
            transport.abort()
        self._seat.holder = self
        self._since = self._seat.since
        if not (unix or peer):  # already reset: its request must not count as one from a local socket
            transport.abort()
        elif not unix:
            _tune(wire, self._settings.write_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lost = True
        self._coming.clear()
        if not self._running:
            self._let_go()

    def _let_go(self) -> None:
        """Frees the seat, and ends the reference cycles of a connection that is over. Full collections of
        garbage stop the loop for as long as there are objects, so none must be due to closed connections.
        """
        if self._seat is not None:
            self._connections.release(self._seat)
        self._unset_keepalive_if_required()
        self.app, self.cycle = cast(Any, None), cast(Any, None)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        self._coming += data
        if not self._again:
            self._feed()

    def _feed(self) -> None:
        """Passes a slice of the received bytes to h11. While a response is in progress the next request waits
        here, in a bounded buffer, and reading goes on so that a disconnect is noticed.
        """
        self._again = False
        if self._lost or self.transport.is_closing():
            self._coming.clear()
            return
        if not self._answering:
            piece = bytes(self._coming[:SLICE])
            del self._coming[:SLICE]
            if self._has_many_headers(piece):
                self._connections.cuts["header"] += 1
                self._wire.write(MANY)
                self.transport.close()
                return
            super().data_received(piece)
        if self._answering:
            self.flow.resume_reading()
            if len(self._coming) > self._settings.most_header:
                self.cut("pipelined")
        elif self._coming and not self.transport.is_closing():
            self._again = True
            self._wire.pause_reading("slices")
            self.loop.call_soon(self._feed)
            return
        self._wire.resume_reading("slices")

    def _has_many_headers(self, piece: bytes) -> bool:
        """Counts header lines before h11 parses them: it takes 35 ms for 16,000 fields of 4 bytes."""
        if self.conn.their_state is not h11.IDLE:
            return False
        ends = [at for at in (piece.find(b"\n\r\n"), piece.find(b"\n\n")) if at >= 0]
        lines = self._lines + piece.count(b"\n", 0, min(ends, default=len(piece)))
        self._lines = 0 if ends else lines
        return lines > MOST_HEADERS

    # Called by uvicorn

    @property
    def _answering(self) -> bool:
        """Whether a request has been received whole and its response is not complete."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._lines = 0
        if self._coming and not self._again:
            self._again = True
            self.loop.call_soon(self._feed)

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Calls the application, or refuses the request where the connection's seat does not allow it."""
        seat = self._seat
        if self._lost or seat is None:
            return
        self._running = True
        self._requests += 1
        if scope["http_version"] == "1.1" and scope["method"] != "HEAD":
            scope.setdefault("extensions", {})[PIECE] = ResponseWriter(self, self.cycle)
        try:
            problem = self._enter(scope, seat)
            if problem is None and not seat.spare:
                await self._inner(scope, receive, send)
                return
            if problem is not None:
                self._connections.refused += 1
                scope["state"]["refused"] = problem
            await self._inner(scope, receive, _closing(send))
        except asyncio.CancelledError:
            # stream.py cancelled the work because the client hung up: not a failure, and no response is due.
            task = asyncio.current_task()
            if not self._lost or (task is not None and task.cancelling()):
                raise
        finally:
            scope.get("extensions", {}).pop(PIECE, None)  # it leads back to the scope
            self._running = False
            self._connections.leave(seat)
            if self._lost:
                self._let_go()

    def write(self, data: bytes) -> None:
        """Writes to the client, past h11."""
        self._wire.write(data)

    def _enter(self, scope: Scope, seat: Seat) -> Problem | None:
        """Sets the request's client address. Returns a Problem where the request must be refused."""
        headers = scope["headers"]
        if not self._trusted:
            # The request came through a proxy that is not trusted: the peer's address is not the client's.
            if is_forwarded(headers):
                scope["client"] = ("forwarded", 0)
        elif forwarded := self._proxies.forwarded(headers):
            scope["client"] = (forwarded, 0)
            if not self._connections.enter(seat, client_of(forwarded)) and not _is_probe(scope):
                line = "too many connections are open from this address: close some, or try again later"
                return Problem("busy", line, code="too_many_connections", retry_after=1)
        if seat.spare and not _is_probe(scope):
            line = "all connections that you can have are in use by requests: try again later"
            return Problem("busy", line, code="too_many_connections", retry_after=1)
        return None

    # Called by `Connections`

    def _now_in(self) -> str:
        """The phase: closing, answer, body (of a request), rest (of a body after the response),
        header, idle.
        """
        if self.transport.is_closing():
            return "closing"
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            return "body" if cycle.more_body else "answer"
        if self.conn.their_state is h11.SEND_BODY:
            return "rest"
        return "header" if self._requests == 0 or self._begun else "idle"

    @property
    def _begun(self) -> bool:
        """Whether a part of the next request has been received."""
        return bool(self._coming or self.conn.trailing_data[0])

    def rank(self, now: float) -> Rank | None:
        """Idle connections give way first, then incomplete headers, incomplete bodies, clients that do not
        read, and headers that have just begun. Among equals the oldest goes first; of bodies and readers, the
        slowest.
        """
        if self._lost:  # keep the seat while the request runs, or a client could start any number and leave
            return None
        phase, since = self._look(now)
        if self._window is not None and now - self._window[0] >= STALLED:
            sent = self._sent() - self._window[1]
            return 3, sent / (now - self._window[0])
        match phase:
            case "closing" | "idle":
                return 0, since
            case "header" | "rest":
                return rank_of_incomplete(since, now)
            case "body":
                return 2, (self._received - self._base) / (now - since + 1.0)
        return None

    def check(self, now: float) -> None:
        if self._lost:
            return
        phase, since = self._look(now)
        if self._reads_too_slowly(now):
            self.cut("write")
            return
        waited, limits = now - since, self._settings
        if phase == "header" and waited > limits.header_seconds:
            self._expire("header")
        elif phase == "idle" and waited > limits.keep_alive:
            self._expire("idle")
        elif phase in ("body", "rest") and self._sends_too_slowly(now, waited):
            self.cut("body")
        elif phase == "closing" and waited > limits.write_seconds:
            self.cut("write")

    def cut(self, reason: str) -> None:
        self._connections.cuts[reason] += 1
        self.transport.abort()

    def _look(self, now: float) -> tuple[str, float]:
        """The phase and the time at which it was first seen. A new request starts a new phase."""
        phase = (self._now_in(), self._requests)
        if phase != self._phase:
            self._phase, self._since, self._base = phase, now, self._received
            self._pace = now, self._received
        return phase[0], self._since

    def _expire(self, reason: str) -> None:
        """Closes the connection; answers 408 first where a request has begun."""
        self._connections.cuts[reason] += 1
        if self._begun:
            self._wire.write(LATE)
        self.transport.close()

    def _sent(self) -> int:
        return self._wire.written - int(self._wire.get_write_buffer_size())

    def _reads_too_slowly(self, now: float) -> bool:
        """Whether the client read below `least_rate` for a whole window."""
        if not self._wire.get_write_buffer_size():
            self._window = None
        elif self._window is None:
            self._window = now, self._sent()
        elif now - self._window[0] >= self._settings.write_seconds:
            wanted = self._settings.least_rate * self._settings.write_seconds
            if self._sent() - self._window[1] < wanted:
                return True
            self._window = now, self._sent()
        return False

    def _sends_too_slowly(self, now: float, waited: float) -> bool:
        """Whether a body comes below `least_rate`, or is much longer than the limit. Time in which the server
        itself paused reading does not count.
        """
        limits, window = self._settings, self._settings.header_seconds
        if self._received - self._base > 2 * limits.most_body + limits.most_header:
            return True
        began, base = self._pace
        if self.flow.read_paused:
            self._pace = now, self._received
            self._since += now - began
            return False
        if waited > limits.body_seconds + window:  # the guard answers first, with 408
            return True
        if now - began < window:
            return False
        self._pace = now, self._received
        return self._received - base < limits.least_rate * window


class ResponseWriter:
    """Writes HTTP chunks of a response under way whose length is not known (see DirectWriter)."""

    def __init__(self, connection: Deadlines, cycle: RequestResponseCycle | None) -> None:
        self._connection, self._cycle, self.at = connection, cycle, 0.0
        self._leased: Recallable | None = None
        self._owned = asyncio.Event()
        self._owned.set()

    def __call__(self, data: bytes) -> bool:
        if not data or not self.open:
            return False
        self.at = time.monotonic()
        self._connection.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    @property
    def open(self) -> bool:
        """Whether the response has begun and its client reads."""
        cycle, connection = self._cycle, self._connection
        if cycle is None or cycle.disconnected or not cycle.response_started or cycle.response_complete:
            return False
        return not connection.flow.write_paused and connection.conn.our_state is h11.SEND_BODY

    @property
    def descriptor(self) -> int:
        transport = self._connection.transport
        if not self.open or transport.get_extra_info("sslcontext") or transport.get_write_buffer_size():
            return -1
        return int(transport.get_extra_info("socket").fileno())

    def leased(self, to: Recallable | None) -> None:
        self._leased = to
        if to is None:
            self._owned.set()
        else:
            self._owned.clear()

    async def own(self) -> None:
        if self._leased is not None:
            self._leased.recall()
            await self._owned.wait()

    def raw(self, data: bytes) -> None:
        if data:
            self._connection.write(data)

    def abort(self) -> None:
        self._connection.cut("broken")


class Refusals:
    """Middleware that answers requests which the connection's seat refuses, in the shape of their flavour."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = scope.get("state", {}).get("refused") if scope["type"] == "http" else None
        if problem is None:
            await self.app(scope, receive, send)
            return
        names = {name.decode("latin-1") for name, _ in scope["headers"]}
        await refuse(flavour_of(scope["path"], names), problem, scope["state"]["request_id"], send)


def _is_probe(scope: Scope) -> bool:
    return scope["path"] in HEALTH and scope["method"] in ("GET", "HEAD")


def _closing(send: Send) -> Send:
    """`send` with `connection: close` added to the response."""

    async def last(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [(k, v) for k, v in message.get("headers", ()) if k.lower() != b"connection"]
            message = {**message, "headers": [*kept, (b"connection", b"close")]}
        await send(message)

    return last


def _tune(connection: socket.socket, write_seconds: float) -> None:
    """Limits the kernel's buffer of unsent bytes, and the time for which it retries to send them."""
    for name, value in (("TCP_NOTSENT_LOWAT", UNSENT), ("TCP_USER_TIMEOUT", round(2e3 * write_seconds))):
        option = getattr(socket, name, None)
        if option is not None:
            with suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
