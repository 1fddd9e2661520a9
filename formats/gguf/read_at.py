"""Reads a file at an offset. Where the system has no such call (Windows), a seek and a read under one lock:
then readers of one descriptor wait for each other, and nobody else may read at its position.
"""

from __future__ import annotations

import os
import threading

MOST = 1 << 30  # bytes of one call
_position = threading.Lock()


def read_at(fd: int, out: memoryview, offset: int) -> int:
    """Reads bytes from this offset on into `out`. The number of bytes, which may be fewer; 0 at the end."""
    part = out[:MOST]
    if hasattr(os, "preadv"):
        return os.preadv(fd, [part], offset)
    with _position:
        os.lseek(fd, offset, os.SEEK_SET)
        data = os.read(fd, len(part))
    part[: len(data)] = data
    return len(data)
