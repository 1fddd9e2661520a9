"""A question to a worker process, as its asker and the thread that hears the process share it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from satchel.formats.gguf import OpenFile
from satchel.runtime.worker.verbs import BARE
from satchel.runtime.worker.wire import NO_BYTES, Message, decode, decode_error, encode


class Asked:
    """sent: the process has it. turns: steps of the engine that it took there. done: it was answered."""

    def __init__(self, verb: str, args: Sequence[Any], how: Mapping[str, Any]) -> None:
        self.verb, self.bare = verb, verb in BARE
        # Of a file that the process may not open itself; the asker keeps it open until it has the answer.
        self.descriptor = next((a.descriptor for a in args if isinstance(a, OpenFile)), -1)
        self.message = {"verb": verb, "args": encode(list(args)), "how": encode(how)}
        self.done = threading.Event()
        self.sent, self.turns = False, 0
        self._value: Any = None
        self._data, self._at = NO_BYTES, 0
        self._error: Exception | None = None

    def again(self) -> None:
        """The process was lost: the next one is asked anew."""
        self.sent, self.turns = False, 0
        self._data, self._at = NO_BYTES, 0

    def answered(self, message: Message) -> None:
        """The answer, but for the bytes that belong to it, which follow."""
        if "error" in message:
            self.fail(decode_error(message["error"]))
            return
        self._value, self._data = message["value"], np.empty(message["bytes"], np.uint8)
        self.part(b"")

    def part(self, data: bytes) -> None:
        end = self._at + len(data)
        self._data[self._at : end] = np.frombuffer(data, np.uint8)
        self._at = end
        if end == len(self._data):
            self.done.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self.done.set()

    def result(self) -> Any:
        """What the verb gave; raises what it raised. For the asker's thread, as it may be long."""
        if self._error is not None:
            raise self._error
        return decode(self._value, self._data)
