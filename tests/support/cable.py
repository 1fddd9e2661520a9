"""A cable between a program and a server on loopback, which tests cut."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from types import TracebackType
from typing import Self

from net_hosts import LOOPBACK


class Cable:
    """A connection between a program and a server that can be cut without either being told: bytes are then
    taken and lost, as in a network whose route is gone.
    """

    def __init__(self, target: int) -> None:
        self._target, self.cut = target, threading.Event()
        self._listening = socket.create_server((LOOPBACK, 0))
        self.port = self._listening.getsockname()[1]
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for end in (self._listening, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                if self.cut.is_set():  # nobody answers
                    self._ends.append(near)
                    continue
                far = socket.create_connection((LOOPBACK, self._target))
                self._ends += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while True:
                select.select([source], [], [])
                data = source.recv(1 << 16)
                if self.cut.is_set():
                    if not data:
                        return
                    continue  # lost, the end of the connection too
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
