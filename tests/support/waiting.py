"""Waiting with a bound: the one place where tests sleep. A condition is polled until it holds; a test fails
with a reason when it never does. The bound is far above what a loaded machine takes and below a test's own
limit, so no verdict depends on the machine's speed.
"""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
SECONDS = 120.0  # the bound of every wait: for a condition, a process, an HTTP response
STEP = 0.01  # seconds between two polls
DEEP = 12  # calls of a stack that a failure shows


def until(done: Callable[[], T], what: str | Callable[[], str], seconds: float = SECONDS) -> T:
    """Polls `done()` until it is true, and returns its value. what: a description of the condition, or a
    function that gives one after a timeout.
    """
    end = time.monotonic() + seconds
    while not (found := done()):
        if time.monotonic() > end:
            raise AssertionError(f"{what if isinstance(what, str) else what()}: not within {seconds:g} s")
        time.sleep(STEP)
    return found


def until_amid(begin: Callable[[], Future[T]], seen: Callable[[], object], what: str) -> Future[T]:
    """Begins some work, polls until `seen()` is true while it is under way, and returns it. Work that ended
    before anything was seen is begun again, so that no verdict depends on how soon this thread looks.
    """
    work = begin()

    def found() -> bool:
        nonlocal work
        if seen():
            return True
        if work.done():
            work.result()
            work = begin()
        return False

    until(found, what)
    return work


async def until_async(done: Callable[[], T], what: str, seconds: float = SECONDS) -> T:
    """Like `until`, while other tasks run."""
    end = time.monotonic() + seconds
    while not (found := done()):
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds:g} s")
        await asyncio.sleep(STEP)
    return found


def joined(thread: threading.Thread, what: str, seconds: float = SECONDS) -> None:
    """Waits until the thread has ended. A failure tells where all threads are: one may wait for another."""
    thread.join(seconds)
    if thread.is_alive():
        line = f"{what}: its thread {thread.name} still runs after {seconds:g} s"
        raise AssertionError(f"{line}\n{stacks()}")


def stacks() -> str:
    """Where each thread of this process is, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame)[-DEEP:])}"
        for ident, frame in sys._current_frames().items()
    )


def task_stacks(loop: asyncio.AbstractEventLoop) -> str:
    """Where each task of a loop waits."""
    told = io.StringIO()
    for task in asyncio.all_tasks(loop):
        task.print_stack(limit=DEEP, file=told)
    return told.getvalue()


def happened(event: threading.Event, what: str, seconds: float = SECONDS) -> None:
    """Waits until the event is set."""
    if not event.wait(seconds):
        raise AssertionError(f"{what}: not within {seconds:g} s")


def ready(address: str, seconds: float = SECONDS) -> None:
    """Waits until the server's readiness probe succeeds."""
    import httpx

    told = "no answer"

    def answers() -> bool:
        nonlocal told
        try:
            found = httpx.get(f"{address}/readyz", timeout=seconds)
        except httpx.TransportError as error:
            told = f"{type(error).__name__}: {error}"
            return False
        told = f"{found.status_code} {found.text[:200]}"
        return found.status_code == 200

    until(answers, lambda: f"{address} is ready (it said: {told})", seconds)
