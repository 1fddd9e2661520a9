"""Starts threads, with a DeviceError if the system has none left. Python raises RuntimeError for that, which
callers do not expect.
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
    """The exception to raise: DeviceError for "can't start new thread"; any other RuntimeError is a bug."""
    if "start new thread" not in str(error):
        return error
    return DeviceError(
        "the system gives this process no further thread: raise the limit of processes (ulimit -u), "
        "or free memory"
    )
