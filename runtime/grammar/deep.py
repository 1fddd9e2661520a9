"""Threads with a large stack. llguidance compiles rules and schemas that refer to each other by recursion,
about 8 KB of stack each: a chain of 2,000 overflows the usual stack of 8 MB.

Invariant: everything that builds a matcher runs here; a compiled spec has at most 5,000 rules or schemas.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

STACK = 128 << 20  # bytes of address space; pages are allocated on first touch
T = TypeVar("T")
_starting = threading.Lock()


def begin_deep(work: Callable[[], object], name: str) -> threading.Thread:
    """Starts a thread with a large stack."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    with _starting:
        before = threading.stack_size(STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return thread


def run_deep(work: Callable[[], T]) -> T:
    """Runs the work in a thread with a large stack; gives its result."""
    made: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            made.append(work())
        except BaseException as error:
            failed.append(error)

    begin_deep(run, "satchel-grammar").join()
    if failed:
        raise failed[0]
    return made[0]
