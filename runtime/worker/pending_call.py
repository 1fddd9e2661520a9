"""One call of a worker process; shared by caller's caller and the thread that receives the answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from satchel.errors import DeviceError
from satchel.formats.gguf import OpenFile
from satchel.runtime.worker.rpc_methods import BARE
from satchel.runtime.worker.wire import Message, decode, decode_error, encode


class PendingCall:
    """sent: the process has the call. turns: steps of the engine that it took there. done: the answer is
    complete. most: bytes that the answer may have.
    """

    def __init__(self, method: str, args: Sequence[Any], how: Mapping[str, Any], most: int) -> None:
        self.method, self.bare = method, method in BARE
        # Of a file that the process may not open itself; the caller keeps it open until it has the answer.
        self.descriptor = next((a.descriptor for a in args if isinstance(a, OpenFile)), -1)
        self.message = {"method": method, "args": encode(list(args)), "how": encode(how)}
        self.done = threading.Event()
        self.sent, self.turns, self.most = False, 0, most
        self._json, self._size = 0, -1  # bytes of the answer's JSON text, and with its arrays; -1: not known
        self._data = bytearray()
        self._error: Exception | None = None

    def resend(self) -> None:
        """The process was lost: the call is sent to the next one."""
        self.sent, self.turns = False, 0
        self._size, self._data = -1, bytearray()

    def answered(self, message: Message) -> None:
        """The size of the answer, whose bytes follow. DeviceError for one that is longer than the method's
        result can be: nothing is reserved for it.
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
        """The next bytes. DeviceError for more than were announced."""
        self._data += data
        if len(self._data) > self._size:
            raise DeviceError(f"the worker process sent more of an answer to {self.method} than it said")
        if len(self._data) == self._size:
            self.done.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self.done.set()

    def result(self) -> Any:
        """The result, or raises the call's error. Decodes in the caller's thread, as results may be large."""
        if self._error is not None:
            raise self._error
        try:
            value = json.loads(self._data[: self._json])
            return decode(value, np.frombuffer(self._data, np.uint8)[self._json :])
        except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            raise DeviceError(f"the worker process sent no answer to {self.method}: {error}") from None
