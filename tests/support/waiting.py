"""Waiting with a bound: the one place where tests sleep. A condition is polled until it holds; what never
comes fails the test with a reason. The bound is far above what a loaded machine takes and below a test's own
limit, so no verdict depends on how fast the machine is.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
SECONDS = 120.0  # the bound of every wait: of conditions, of processes, of answers over HTTP
STEP = 0.01  # seconds between two looks


def until(done: Callable[[], T], what: str | Callable[[], str], seconds: float = SECONDS) -> T:
    """Returns what `done()` gives, once that is true. what: what is waited for, in words, or a function that
    says it when it did not come.
    """
    end = time.monotonic() + seconds
    while not (found := done()):
        if time.monotonic() > end:
            raise AssertionError(f"{what if isinstance(what, str) else what()}: not within {seconds:g} s")
        time.sleep(STEP)
    return found


async def until_async(done: Callable[[], T], what: str, seconds: float = SECONDS) -> T:
    """Async version: other tasks run meanwhile."""
    end = time.monotonic() + seconds
    while not (found := done()):
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds:g} s")
        await asyncio.sleep(STEP)
    return found


def joined(thread: threading.Thread, what: str, seconds: float = SECONDS) -> None:
    """Waits for a thread's end."""
    thread.join(seconds)
    if thread.is_alive():
        raise AssertionError(f"{what}: its thread still runs after {seconds:g} s")


def happened(event: threading.Event, what: str, seconds: float = SECONDS) -> None:
    """Waits for an event."""
    if not event.wait(seconds):
        raise AssertionError(f"{what}: not within {seconds:g} s")


def ready(address: str, seconds: float = SECONDS) -> None:
    """Returns once a server says that it is ready."""
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
