"""A server for clients that hold a key: listens, shakes hands with each, and serves it in its own thread.

Invariant: before the handshake nothing is done; at most PENDING connections are in one, and at most so many
sessions as the server allows are open. Further connections are closed at once.
"""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from logging import INFO, WARNING
from typing import Protocol

from satchel.errors import DeviceError, RequestError
from satchel.errors.threads import begin
from satchel.formats.resource import Resource
from satchel.runtime.log import LOG
from satchel.runtime.net.address import Address
from satchel.runtime.net.link import Link, LinkDeadlines, LinkError, WrongKey, accept

PENDING, SESSIONS = 32, 32  # most connections in their handshake, and most that are open
CLIENT = LinkDeadlines(missed=10)  # a client that is busy gives fewer signs of life than a host


class AnySession(Protocol):
    """What a server has with a client. over: set once all that it held is freed."""

    over: threading.Event

    def serve(self) -> None:
        """Serves until the client is gone; then frees everything."""

    def end(self) -> None:
        """Ends the session; its thread frees everything."""


class KeyServer(Resource, ABC):
    """Listens for clients that hold the key, and has a session with each. port: that of the socket, also
    where 0 was asked for. most: sessions that may be open.
    """

    def __init__(
        self, address: Address, key: bytes, deadlines: LinkDeadlines = CLIENT, most: int = SESSIONS
    ) -> None:
        """Raises RequestError if the address cannot be listened on."""
        self._key, self._deadlines, self._most = key, deadlines, most
        self._lock, self._closed = threading.Lock(), False
        self._pending, self.sessions = 0, set[AnySession]()
        try:
            found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self._listener = socket.create_server(found[0][4][:2], family=found[0][0], backlog=PENDING)
        except OSError as error:
            why = error.strerror or str(error)
            raise RequestError(f"{address.host} port {address.port} cannot be listened on: {why}") from None
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name="satchel-accept", daemon=True)
        begin(self._thread)

    @abstractmethod
    def session(self, link: Link, peer: str) -> AnySession:
        """The session with a client that has shown its key."""

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, peer = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                continue
            with self._lock:
                full = self._pending >= PENDING or len(self.sessions) >= self._most
                self._pending += not full
            if full:
                sock.close()
                continue
            try:
                begin(threading.Thread(target=self._welcome, args=(sock, str(peer[0])), daemon=True))
            except DeviceError as error:
                LOG.error("%s", error)
                self._done_pending(sock)

    def _done_pending(self, sock: socket.socket | None = None) -> None:
        with self._lock:
            self._pending -= 1
        if sock is not None:
            sock.close()

    def _welcome(self, sock: socket.socket, peer: str) -> None:
        """The handshake, then the session, in a thread of its own."""
        try:
            link = accept(sock, self._key, self._deadlines)
        except LinkError as error:
            LOG.log(WARNING if isinstance(error, WrongKey) else INFO, "%s was refused: %s", peer, error)
            self._done_pending(sock)
            return
        session = self.session(link, peer)
        with self._lock:
            self._pending -= 1
            late = self._closed or len(self.sessions) >= self._most
            if not late:
                self.sessions.add(session)
        try:
            if not late:
                session.serve()
        finally:
            link.close()
            with self._lock:
                self.sessions.discard(session)

    def close(self) -> None:
        """Ends all sessions; what they hold is freed when it returns."""
        self._closed = True
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:  # of systems where only this wakes the thread that accepts
            self._listener.close()
        self._thread.join()  # else it might accept from the next socket of this number
        self._listener.close()
        with self._lock:
            sessions = list(self.sessions)
        for session in sessions:
            session.end()
        for session in sessions:
            session.over.wait()
