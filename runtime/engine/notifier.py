"""Wakes readers in an asyncio loop from other threads: one call_soon_threadsafe for many readers, because the
call costs more than the rest of a token's way to its reader.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from weakref import WeakKeyDictionary

Wake = Callable[[], object]


class Notifier:
    """Notifier of one asyncio loop. Any thread may call notify()."""

    def __init__(self) -> None:
        self._due: list[Wake] = []
        self._lock = threading.Lock()

    def notify(self, loop: asyncio.AbstractEventLoop, wakes: Iterable[Wake]) -> None:
        """Calls each of `wakes` soon, in the loop's thread and in one turn of it; does nothing if the loop is
        closed. They must not raise.
        """
        with self._lock:
            pending = bool(self._due)
            self._due += wakes
        if not pending:  # else the first call is still due, and makes these too
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        with self._lock:
            due, self._due = self._due, []
        for wake in due:
            wake()


# One notifier per loop, shared by all readers of the loop.
_notifiers: WeakKeyDictionary[asyncio.AbstractEventLoop, Notifier] = WeakKeyDictionary()
_making = threading.Lock()


def notifier_of(loop: asyncio.AbstractEventLoop) -> Notifier:
    with _making:
        return _notifiers.setdefault(loop, Notifier())
