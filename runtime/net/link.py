"""A connection between two hosts that hold one key: mutual authentication, then frames that carry a MAC.

The server begins with MAGIC and a nonce. The client answers with a nonce of its own and the HMAC-SHA256 of
both under the key; the server answers with another one. Each connection so has nonces that were never used
before, and derives a key for each direction from them. A frame is the sizes of its two parts, the parts (a
JSON object and raw bytes), and an HMAC over the frame's number, sizes and parts: a frame that was changed,
repeated, left out or moved ends the connection. Frames are authenticated, not encrypted.

Invariants: for a peer without a proof, HELLO bytes are read within `handshake` seconds and nothing else is
done. A length that is received reserves no memory: there is never more than twice what has come, and a piece.
Every wait has a deadline.

Reads and writes are those of files, because a worker's sandbox allows them and refuses sendto().
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from satchel.errors import DeviceError
from satchel.formats.resource import Resource

MAGIC = b"satchel device 1"
NONCE, DIGEST = 32, 32  # bytes
REFUSED = bytes(DIGEST)  # the server's answer to a proof that is wrong
SIZES, NUMBER = struct.Struct("<II"), struct.Struct("<Q")
MOST_HEAD = 4 << 20  # most bytes of a frame's JSON object
MOST_DATA = 32 << 20  # most raw bytes of a frame
PIECE = 1 << 16  # bytes for which there is room before any came
SLOWEST = 1 << 20  # bytes per second that a frame must come with, once it has begun
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LinkDeadlines:
    """Seconds that a connection waits."""

    handshake: float = 5.0  # for the whole handshake
    beat: float = 1.0  # between two signs of life
    missed: int = 3  # beats without a byte after which the peer is lost
    frame: float = 10.0  # for a frame, besides its bytes at SLOWEST

    @property
    def patience(self) -> float:
        return self.beat * self.missed


class LinkError(DeviceError):
    """The connection is of no more use."""


class WrongKey(LinkError):
    """The peer holds another key."""


class Link(Resource):
    """An authenticated connection. Any thread may send; one receives; any may close it.

    Its descriptor is closed when no thread uses it any more: the number would be that of the next connection,
    whose bytes a thread that was about to read would take.
    """

    def __init__(self, sock: socket.socket, mine: bytes, theirs: bytes, deadlines: LinkDeadlines) -> None:
        """mine, theirs: the keys of frames that this side sends, and of those that it receives."""
        self._sock, self._deadlines = sock, deadlines
        self._mine, self._theirs = mine, theirs
        self._sent = self._received = 0
        self._sending = threading.Lock()
        self._using, self._users, self._closed = threading.Lock(), 0, False

    def send(self, message: Message, data: bytes | memoryview = b"") -> None:
        """Sends a frame. Raises LinkError if the connection has ended, or the peer takes nothing for too
        long.
        """
        head = json.dumps(message, separators=(",", ":")).encode()
        size = memoryview(data).nbytes
        if len(head) > MOST_HEAD or size > MOST_DATA:
            raise ValueError(f"a frame of {len(head):,} and {size:,} bytes")
        sizes = SIZES.pack(len(head), size)
        with self._sending:
            mac = _mac(self._mine, self._sent, sizes, head, data)
            self._sent += 1
            if size <= PIECE:
                self._write(b"".join((sizes, head, data, mac)))
            else:
                for part in (sizes + head, data, mac):
                    self._write(part)

    def receive(self) -> tuple[Message, memoryview]:
        """The next frame. Raises LinkError at the end of the connection, for a frame that the peer did not
        send, and for a peer that is silent or too slow.
        """
        sizes = bytes(self._read(SIZES.size, begins=True))
        head_size, size = SIZES.unpack(sizes)
        if head_size > MOST_HEAD or size > MOST_DATA:
            found = f"{head_size:,} and {size:,} bytes, expected {MOST_HEAD:,} and {MOST_DATA:,} at most"
            raise LinkError(f"a frame of {found}")
        body = memoryview(self._read(head_size + size + DIGEST))
        head, data, mac = body[:head_size], body[head_size:-DIGEST], body[-DIGEST:]
        if not hmac.compare_digest(mac, _mac(self._theirs, self._received, sizes, head, data)):
            raise LinkError("a frame was changed, repeated or left out on its way")
        self._received += 1
        try:
            message = json.loads(bytes(head))
        except (ValueError, RecursionError) as error:
            raise LinkError(f"a frame holds no JSON: {error}") from None
        if not isinstance(message, dict):
            raise LinkError(f"a frame holds {bytes(head[:40])!a}, expected a JSON object")
        return message, data

    @property
    def unread(self) -> bool:
        """Whether bytes have come that are not read yet."""
        try:
            with self._used():
                return _ready(self._sock, select.POLLIN, 0)
        except LinkError:
            return False

    def _read(self, size: int, *, begins: bool = False) -> bytearray:
        """So many bytes. begins: no frame has begun, so the peer may take its time, with signs of life."""
        end = None if begins else time.monotonic() + self._deadlines.frame + size / SLOWEST
        with self._used():
            return read_bytes(self._sock, size, self._deadlines, end)

    def _write(self, data: bytes | memoryview) -> None:
        with self._used():
            self._write_all(memoryview(data).cast("B"))

    def _write_all(self, left: memoryview) -> None:
        missed = 0
        while left:
            try:
                n = os.write(self._sock.fileno(), left)
            except BlockingIOError:
                missed = 0 if _ready(self._sock, select.POLLOUT, self._deadlines.beat) else missed + 1
                if missed >= self._deadlines.missed:
                    raise LinkError(f"the peer took nothing for {self._deadlines.patience:g} s") from None
                continue
            except (OSError, ValueError) as error:
                raise LinkError(f"the connection ended: {error}") from None
            left, missed = left[n:], 0

    def close(self) -> None:
        """Ends the connection; a thread that waits in receive() gets an error. Others may still call."""
        with self._using:
            if not self._closed:
                self._closed = True
                with suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)
                if not self._users:
                    self._sock.close()

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Keeps the descriptor open. Raises LinkError if the connection was closed here."""
        with self._using:
            if self._closed:
                raise LinkError("the connection ended: it was closed here")
            self._users += 1
        try:
            yield
        finally:
            with self._using:
                self._users -= 1
                if self._closed and not self._users:
                    self._sock.close()


def _mac(key: bytes, number: int, *parts: bytes | memoryview) -> bytes:
    found = hmac.new(key, NUMBER.pack(number), hashlib.sha256)
    for part in parts:
        found.update(part)
    return found.digest()


def _ready(sock: socket.socket, event: int, seconds: float) -> bool:
    """Waits for a socket. Raises LinkError where it was closed meanwhile."""
    poll = select.poll()
    try:
        poll.register(sock, event)
    except (OSError, ValueError) as error:
        raise LinkError(f"the connection ended: {error}") from None
    return bool(poll.poll(seconds * 1000))


def read_bytes(sock: socket.socket, size: int, deadlines: LinkDeadlines, end: float | None) -> bytearray:
    """So many bytes of a socket that does not block. end: monotonic time by which the last must have come;
    None: any, as long as the silence is not longer than the deadlines say. Raises LinkError.
    """
    found, at, missed = bytearray(min(size, PIECE)), 0, 0
    while at < size:
        if at == len(found):
            found.extend(bytes(min(size - at, at)))
        try:
            n = os.readv(sock.fileno(), [memoryview(found)[at:]])
        except BlockingIOError:
            missed = 0 if _ready(sock, select.POLLIN, deadlines.beat) else missed + 1
            if missed >= deadlines.missed:
                raise LinkError(f"the peer gave no sign of life for {deadlines.patience:g} s") from None
            n = -1
        except (OSError, ValueError) as error:
            raise LinkError(f"the connection ended: {error}") from None
        if n == 0:
            raise LinkError("the connection ended" + (" within a frame" if at else ""))
        if end is not None and time.monotonic() > end:
            raise LinkError(f"the peer is too slow: {at:,} of {size:,} bytes came in time")
        at, missed = at + max(n, 0), 0 if n > 0 else missed
    return found


def _proof(key: bytes, role: bytes, server: bytes, client: bytes) -> bytes:
    """The HMAC of a role and the nonces of both sides. Roles differ, so that no proof can be sent back."""
    return hmac.new(key, MAGIC + role + server + client, hashlib.sha256).digest()


def _prepare(sock: socket.socket, deadlines: LinkDeadlines) -> float:
    """Sets the socket up; gives the time by which the handshake must end."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return time.monotonic() + deadlines.handshake


def _say(sock: socket.socket, data: bytes) -> None:
    """Sends a part of the handshake, which the socket's buffer takes whole."""
    try:
        if os.write(sock.fileno(), data) != len(data):
            raise LinkError("the connection takes no handshake")
    except OSError as error:
        raise LinkError(f"the connection ended: {error}") from None


def accept(sock: socket.socket, key: bytes, deadlines: LinkDeadlines) -> Link:
    """The server's side of the handshake. Raises WrongKey for a client with another key, LinkError for one
    that does not shake hands in time. The caller closes the socket then.
    """
    end, server = _prepare(sock, deadlines), secrets.token_bytes(NONCE)
    _say(sock, MAGIC + server)
    told = bytes(_within(sock, len(MAGIC) + NONCE + DIGEST, deadlines, end))
    client, proof = told[len(MAGIC) : -DIGEST], told[-DIGEST:]
    if not told.startswith(MAGIC):
        raise LinkError(f"the peer began with {told[:16]!a}, which is no handshake")
    if not hmac.compare_digest(proof, _proof(key, b"client", server, client)):
        with suppress(LinkError):
            _say(sock, REFUSED)
        raise WrongKey("the client has another key")
    _say(sock, _proof(key, b"server", server, client))
    keys = [_proof(key, way, server, client) for way in (b"from server", b"from client")]
    return Link(sock, keys[0], keys[1], deadlines)


def greet(sock: socket.socket, key: bytes, deadlines: LinkDeadlines) -> Link:
    """The client's side of the handshake; raises as accept() does."""
    end, client = _prepare(sock, deadlines), secrets.token_bytes(NONCE)
    told = bytes(_within(sock, len(MAGIC) + NONCE, deadlines, end))
    if not told.startswith(MAGIC):
        raise LinkError(f"it began with {told[:16]!a}: it is no device server of this version of Satchel")
    server = told[len(MAGIC) :]
    _say(sock, MAGIC + client + _proof(key, b"client", server, client))
    answer = bytes(_within(sock, DIGEST, deadlines, end))
    if answer == REFUSED:
        raise WrongKey("it refused the key")
    if not hmac.compare_digest(answer, _proof(key, b"server", server, client)):
        raise WrongKey("it does not know the key")
    keys = [_proof(key, way, server, client) for way in (b"from client", b"from server")]
    return Link(sock, keys[0], keys[1], deadlines)


def _within(sock: socket.socket, size: int, deadlines: LinkDeadlines, end: float) -> bytearray:
    """Bytes of the handshake; its whole time is bounded, so single waits are not."""
    short = LinkDeadlines(beat=max(0.001, end - time.monotonic()), missed=1)
    try:
        return read_bytes(sock, size, short, end)
    except LinkError as error:
        raise LinkError(f"no handshake within {deadlines.handshake:g} s: {error}") from None
