"""Wakes tasks of an asyncio loop from other threads: many waiters by one call_soon_threadsafe, which costs
more than all the rest of a token's way to its reader.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from weakref import WeakKeyDictionary

Waiter = asyncio.Future[None]


class Notifier:
    """Notifier of one asyncio loop. Any thread may call notify()."""

    def __init__(self) -> None:
        self._due: list[Waiter] = []
        self._lock = threading.Lock()

    def notify(self, waiter: Waiter) -> None:
        """Resolves the waiter soon, in its loop's thread; does nothing if the loop is closed."""
        with self._lock:
            self._due.append(waiter)
            if len(self._due) > 1:
                return  # the first waiter's call is still pending and wakes this one too
        with suppress(RuntimeError):
            waiter.get_loop().call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        with self._lock:
            due, self._due = self._due, []
        for waiter in due:
            if not waiter.done():
                waiter.set_result(None)


# One notifier per loop, shared by all waiters of the loop.
_notifiers: WeakKeyDictionary[asyncio.AbstractEventLoop, Notifier] = WeakKeyDictionary()
_making = threading.Lock()


def notifier_of(loop: asyncio.AbstractEventLoop) -> Notifier:
    with _making:
        return _notifiers.setdefault(loop, Notifier())
