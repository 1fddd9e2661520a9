"""Starts threads, with a DeviceError if the system has none left. Python raises RuntimeError for that, which
callers do not expect.
"""

from __future__ import annotations

import mmap
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from satchel.errors import DeviceError

P = ParamSpec("P")
T = TypeVar("T")
STACK = 8 << 20  # bytes of a thread's stack, where the system does not limit it otherwise
BEGINNING = 4 << 20  # bytes that Python takes for a thread before it runs: room of its allocators


def begin(thread: threading.Thread) -> None:
    """Starts the thread. DeviceError where the system gives none, or too little memory for one."""
    _ask_for_room()
    try:
        thread.start()
    except RuntimeError as error:
        raise _none_left(error) from None


class SafeThreadPool(ThreadPoolExecutor):
    """A pool whose submit() raises DeviceError where the system gives no thread."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if len(self._threads) < self._max_workers:
            _ask_for_room()
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError as error:
            raise _none_left(error) from None


def _ask_for_room() -> None:
    """DeviceError where a limit of memory (ulimit -d, -v) leaves no room for a thread. A thread that finds no
    memory before it runs ends without a word, and start() then waits for it for ever.
    """
    if sys.platform == "win32":
        return
    try:
        mmap.mmap(-1, STACK + BEGINNING, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        raise _refused() from None


def _refused() -> DeviceError:
    return DeviceError(
        "the system gives this process no further thread: raise the limit of processes (ulimit -u) or of"
        " memory (ulimit -d, -v), or free memory"
    )


def _none_left(error: RuntimeError) -> Exception:
    """The exception to raise: DeviceError for "can't start new thread"; any other RuntimeError is a bug."""
    if "start new thread" not in str(error):
        return error
    return _refused()
