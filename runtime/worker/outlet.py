"""Output of a worker: whole messages, one after another. Bytes of long answers are sent in parts and give way
to every other message, so no token stream and no step waits for them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import BinaryIO

from satchel.runtime.worker.wire import PART, Message, write_message


class Outlet:
    """Sends messages; thread-safe."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._turn = file, threading.Condition(threading.Lock())
        self._waiting, self._busy = 0, False

    def send(self, message: Message) -> None:
        with self._turn:
            self._waiting += 1
            while self._busy:
                self._turn.wait()
            self._waiting -= 1
            self._busy = True
        self._write(message)

    def send_parts(self, message: Message, parts: Sequence[memoryview]) -> None:
        """Sends bytes that belong together, each piece with a message of its own."""
        for part in parts:
            for at in range(0, len(part), PART):
                with self._turn:
                    while self._busy or self._waiting:
                        self._turn.wait()
                    self._busy = True
                self._write(message, part[at : at + PART])

    def _write(self, message: Message, data: bytes | memoryview = b"") -> None:
        try:
            write_message(self._file, message, data)
        finally:
            with self._turn:
                self._busy = False
                self._turn.notify_all()
