"""Pins a process to some processors. It imports nothing that starts a thread, so that all threads follow."""

from __future__ import annotations

import os
from collections.abc import Sequence


def pin(cpus: Sequence[int]) -> bool:
    """Keeps this thread, and all that it starts from now on, to these processors; none: all. False where the
    system refuses. A page lies in the memory next to the processor that first writes it, so what such a
    process loads is near.
    """
    if not cpus:
        return True
    if not hasattr(os, "sched_setaffinity"):
        return False
    try:
        os.sched_setaffinity(0, cpus)
    except (OSError, ValueError):  # they were taken from this process meanwhile
        return False
    return True
