"""Wakes tasks of an asyncio loop from other threads: any number of them by one call into the loop, for such a
call costs more than a token's whole way to its reader.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from weakref import WeakKeyDictionary

Waiter = asyncio.Future[None]


class Bell:
    """One loop's. ring() may be called by any thread."""

    def __init__(self) -> None:
        self._due: list[Waiter] = []
        self._lock = threading.Lock()

    def ring(self, waiter: Waiter) -> None:
        """Has the waiter resolved soon, in its loop's thread. A loop that is closed wakes nobody."""
        with self._lock:
            self._due.append(waiter)
            if len(self._due) > 1:
                return  # the call that the first one made is still to come
        with suppress(RuntimeError):
            waiter.get_loop().call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        with self._lock:
            due, self._due = self._due, []
        for waiter in due:
            if not waiter.done():
                waiter.set_result(None)


# By loop: all that wait in one share its bell.
_bells: WeakKeyDictionary[asyncio.AbstractEventLoop, Bell] = WeakKeyDictionary()
_making = threading.Lock()


def bell_of(loop: asyncio.AbstractEventLoop) -> Bell:
    with _making:
        return _bells.setdefault(loop, Bell())
