"""What this process may use of the machine's processors."""

from __future__ import annotations

import os


def usable() -> frozenset[int]:
    """Numbers of the processors that this process may use; empty where the system does not say."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
