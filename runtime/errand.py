"""Work that a caller has done on the engine's thread beside requests, piece by piece: embeddings, scores,
saved states. An errand says whose work it is, wherever in the call it is asked, and whether it is still
wanted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

from satchel.quant import RequestError

T = TypeVar("T")


class Errand:
    """run() does the work under this errand; stop(), from any thread, ends it at its next step or wait with a
    RequestError. number: how its owner calls it, 0: no name.
    """

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def check(self) -> None:
        """RequestError where it is not wanted any more."""
        if self._stopped.is_set():
            raise RequestError("the call was cancelled")

    def run(self, work: Callable[[], T]) -> T:
        self.check()
        token = _CURRENT.set(self)
        try:
            return work()
        finally:
            _CURRENT.reset(token)


# Of a thread or task, as every call below it sees it.
_CURRENT: ContextVar[Errand | None] = ContextVar("satchel-errand", default=None)
_NOBODY = Errand()


def current() -> Errand:
    """The errand that this thread works for; outside of any, one that nobody stops."""
    return _CURRENT.get() or _NOBODY
