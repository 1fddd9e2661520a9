"""Waiting with a bound: what never comes fails the test, with a reason."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SECONDS = 60.0


def until(done: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    """Returns once `done()` is true. what: what was waited for, in words."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds:g} s")
        time.sleep(0.02)


def joined(thread: threading.Thread, what: str, seconds: float = SECONDS) -> None:
    """Waits for a thread's end."""
    thread.join(seconds)
    if thread.is_alive():
        raise AssertionError(f"{what}: its thread still runs after {seconds:g} s")


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

    try:
        until(answers, f"{address} is ready", seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}; it said: {told}") from None
