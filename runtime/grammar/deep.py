"""Threads with a large stack. llguidance compiles rules and schemas that refer to each other by recursion,
some 8 KB of stack for each: a chain of 2,000 ends the process on a usual stack of 8 MB.

Invariant: all that builds a matcher runs here; what is compiled has at most 5,000 rules or schemas.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

STACK = 128 << 20  # bytes of address space; memory is taken as it is touched
T = TypeVar("T")
_starting = threading.Lock()


def begin_deep(work: Callable[[], object], name: str) -> threading.Thread:
    """A thread that does the work, begun."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    with _starting:
        before = threading.stack_size(STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return thread


def run_deep(work: Callable[[], T]) -> T:
    """The result of the work, done in a thread with a large stack."""
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
