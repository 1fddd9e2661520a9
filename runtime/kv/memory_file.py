"""Files that lie in memory alone, by descriptor: blocks of keys and values go from one process to another
in them.

Invariant: such a file has no name, so that no other process can open it, and it is gone with its last
descriptor.
"""

from __future__ import annotations

import os
import tempfile

import numpy as np

from satchel.runtime.graph import Array

NAME = "satchel-kv"


def memory_file() -> int:
    """The descriptor of a new, empty file, which the caller closes. It lies in memory on Linux; elsewhere it
    is a temporary file whose name is gone already. Raises OSError where there is no room for one.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(NAME, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix=NAME) as file:
        return os.dup(file.fileno())


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Appends the data at the descriptor's position."""
    left = memoryview(data).cast("B")
    while left:
        left = left[os.write(descriptor, left) :]


def read_all(descriptor: int) -> Array:
    """All of a file (bytes) uint8, whatever its position. Raises OSError if it is cut meanwhile."""
    data = np.empty(os.fstat(descriptor).st_size, np.uint8)
    part, at = data.data, 0
    while at < len(data):
        n = os.preadv(descriptor, [part[at:]], at)
        if not n:
            raise OSError(f"a file in memory ended after {at:,} of {len(data):,} bytes")
        at += n
    return data
