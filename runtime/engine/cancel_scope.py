"""Cancellation of calls that use the engine without being a request: embeddings, scores, saved states. Their
work runs on the engine thread piece by piece; the current scope, a context variable, says to every function
below the call whose work it is and whether it was cancelled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

from satchel.errors import RequestError

T = TypeVar("T")


class CancelScope:
    """run() does the work inside of this scope; cancel(), from any thread, ends it at its next step or wait
    with a RequestError. number: the owner's id of the call, 0: none.
    """

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        self._cancelled.set()

    def check(self) -> None:
        """RequestError once the scope is cancelled."""
        if self._cancelled.is_set():
            raise RequestError("the call was cancelled")

    def run(self, work: Callable[[], T]) -> T:
        self.check()
        token = _CURRENT.set(self)
        try:
            return work()
        finally:
            _CURRENT.reset(token)


_CURRENT: ContextVar[CancelScope | None] = ContextVar("satchel-cancel-scope", default=None)
_NEVER_CANCELLED = CancelScope()


def current_scope() -> CancelScope:
    """The innermost scope of this thread or task; outside of any, one that is never cancelled."""
    return _CURRENT.get() or _NEVER_CANCELLED
