"""Threads that begin, or one error that says why not: the system may have none left, and Python says so by a
RuntimeError that nobody expects.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from satchel.errors import DeviceError

P = ParamSpec("P")
T = TypeVar("T")


def begin(thread: threading.Thread) -> None:
    """Starts the thread. DeviceError where the system gives none."""
    try:
        thread.start()
    except RuntimeError as error:
        raise _none_left(error) from None


class SafeThreadPool(ThreadPoolExecutor):
    """A pool whose submit() raises DeviceError where the system gives no thread."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError as error:
            raise _none_left(error) from None


def _none_left(error: RuntimeError) -> Exception:
    """What to raise: other errors of the kind are bugs, and stay what they are."""
    if "start new thread" not in str(error):
        return error
    return DeviceError(
        "the system gives this process no further thread: raise the limit of processes (ulimit -u), "
        "or free memory"
    )
