"""A pending call of a worker process, shared by its caller's thread and the thread that receives
the answer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from satchel.errors import DeviceError
from satchel.formats.gguf import OpenFile
from satchel.runtime.engine.cancel_scope import current_scope
from satchel.runtime.worker.expected import most_bytes
from satchel.runtime.worker.rpc_methods import BARE
from satchel.runtime.worker.wire import Message, decode, decode_error, encode

POLL = 0.1  # seconds between checks whether the caller still waits


class PendingCall:
    """A call that waits for its answer.

    number: by which its process knows it.
    sent: the process has the call.
    turns: engine steps that it took there.
    done: the answer is complete.
    most: upper bound on the answer's bytes.
    tied: to its process; no other one can answer it.
    """

    def __init__(self, method: str, args: Sequence[Any], how: Mapping[str, Any], most: int) -> None:
        self.method, self.bare = method, method in BARE
        # Of a file that the sandboxed process cannot open; the caller keeps it open until it has the answer.
        self.descriptor = next((a.descriptor for a in args if isinstance(a, OpenFile)), -1)
        self.message = {"method": method, "args": encode(list(args)), "how": encode(how)}
        self.done = threading.Event()
        self.number, self.sent, self.turns, self.most = 0, False, 0, most
        self.tied = False
        self._json, self._size = 0, -1  # bytes of the answer's JSON text, and of it all; -1: unknown
        self._data = bytearray()
        self._error: Exception | None = None

    def resend(self) -> None:
        """Called when the process is lost: the call goes to the next one."""
        self.sent, self.turns = False, 0
        self._size, self._data = -1, bytearray()

    def answered(self, message: Message) -> None:
        """Announces the answer's size; its bytes follow. Raises DeviceError, before any memory is reserved,
        if it exceeds the bound.
        """
        if "error" in message:
            self.fail(decode_error(message["error"]))
            return
        text, arrays = message["json"], message["bytes"]
        if self._size >= 0 or min(text, arrays) < 0 or text + arrays > self.most:
            told = f"{text:,} and {arrays:,} bytes, expected {self.most:,} at most"
            raise DeviceError(f"the worker process sent an answer to {self.method} of {told}")
        self._json, self._size = text, text + arrays
        self.part(b"")

    def part(self, data: bytes) -> None:
        """The next bytes. Raises DeviceError if they exceed the announced size."""
        self._data += data
        if len(self._data) > self._size:
            raise DeviceError(f"the worker process sent more of an answer to {self.method} than it said")
        if len(self._data) == self._size:
            self.done.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self.done.set()

    def result(self) -> Any:
        """The result, or raises the call's error. Decodes in the caller's thread, because results may be
        large.
        """
        if self._error is not None:
            raise self._error
        try:
            value = json.loads(self._data[: self._json])
            return decode(value, np.frombuffer(self._data, np.uint8)[self._json :])
        except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            raise DeviceError(f"the worker process sent no answer to {self.method}: {error}") from None

    def wait(self, check: Callable[[], None]) -> Any:
        """The result, once it is there. Raises the call's error, that of check(), which is called meanwhile,
        or that of the current CancelScope.
        """
        scope = current_scope()
        while not self.done.wait(POLL):
            scope.check()
            check()
        return self.result()

    def __str__(self) -> str:
        """As errors name it."""
        return f"{self.number} ({self.method})"


def call_of(method: str, args: Sequence[Any], how: Mapping[str, Any], widths: tuple[int, int]) -> PendingCall:
    """A call for the client of the current CancelScope. widths: of the vocabulary and of a hidden row."""
    scope = current_scope()
    call = PendingCall(method, args, how, most_bytes(method, args, how, *widths))
    call.message["client"] = [scope.client, scope.weight]
    scope.check()
    return call
