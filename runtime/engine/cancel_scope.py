"""Cancellation scopes for calls that use the engine without being a request: embeddings, scores, saved
states. Their work runs on the engine thread piece by piece. The current scope, a context variable, tells
every function below the call which call it works for, whose share of the engine that uses, and whether it is
cancelled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from satchel.errors import RequestError

T = TypeVar("T")


class CancelScope:
    """run() runs the work inside this scope. cancel(), from any thread, ends it with a RequestError at its
    next step or wait.

    number: the owner's id of the call; 0: none.
    client, weight: whose share of the engine the call uses, as in GenerateRequest.
    """

    def __init__(self, number: int = 0, client: str = "", weight: float = 1.0) -> None:
        self.number, self.client, self.weight = number, client, weight
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        self._cancelled.set()

    def check(self) -> None:
        """Raises RequestError once the scope is cancelled."""
        if self._cancelled.is_set():
            raise RequestError("the call was cancelled")

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Makes it the current scope of this thread or task. Several may enter it at once."""
        self.check()
        outer = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(outer)

    def run(self, work: Callable[[], T]) -> T:
        with self.entered():
            return work()


_CURRENT: ContextVar[CancelScope | None] = ContextVar("satchel-cancel-scope", default=None)
_NEVER_CANCELLED = CancelScope()


def current_scope() -> CancelScope:
    """The innermost scope of this thread or task; outside of any, a scope that is never cancelled."""
    return _CURRENT.get() or _NEVER_CANCELLED
