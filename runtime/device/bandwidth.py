"""How fast this machine reads memory, measured by numpy: for devices that do not measure it themselves.

Every thread reads its part of one buffer again and again, by numpy reductions whose loops are vectorized C.
The best pass counts, since a limit is what the machine can do. A buffer that fits a cache is read from it, as
weights are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from satchel.errors import RequestError
from satchel.runtime.graph import Array

SECONDS = 0.2  # time for each way of reading
LEAST_PASS = 0.01  # a pass is at least so long, so that starting the threads does not count
LARGEST = 1 << 30
# Which reduction is quickest depends on numpy's build and on the processor.
READERS: tuple[tuple[Callable[[Array], object], str], ...] = (
    (np.maximum.reduce, "<f4"),
    (np.add.reduce, "<u8"),
    (np.maximum.reduce, "<i1"),
    (np.bitwise_or.reduce, "<u8"),
)


def read_bandwidth(size: int, threads: int) -> float:
    """Bytes a second at which `threads` threads read a buffer of `size` bytes, of at most 1 GiB."""
    if size < 1 or threads < 1:
        raise RequestError(f"bandwidth of {size} bytes on {threads} threads: both must be 1 or more")
    part = max(64, min(size, LARGEST) // threads // 64 * 64)
    parts = [np.ones(part // 8, np.uint64) for _ in range(threads)]
    return max(_best([p.view(kind) for p in parts], read) for read, kind in READERS)


def _best(parts: list[Array], read: Callable[[Array], object]) -> float:
    """The best of as many passes as fit the time."""
    total = sum(p.nbytes for p in parts)
    repeats, best, end = 1, 0.0, time.perf_counter() + SECONDS
    while True:
        seconds = _pass(parts, read, repeats)
        if seconds < LEAST_PASS:
            repeats *= 2
        else:
            best = max(best, total * repeats / seconds)
        if time.perf_counter() > end:
            return best or total * repeats / seconds


def _pass(parts: list[Array], read: Callable[[Array], object], repeats: int) -> float:
    """Seconds from when all threads stand ready to when the last one is done."""
    ready = threading.Barrier(len(parts))
    begun, ended = [0.0] * len(parts), [0.0] * len(parts)

    def work(i: int) -> None:
        ready.wait()
        begun[i] = time.perf_counter()
        for _ in range(repeats):
            read(parts[i])
        ended[i] = time.perf_counter()

    others = [threading.Thread(target=work, args=(i,)) for i in range(1, len(parts))]
    for thread in others:
        thread.start()
    work(0)
    for thread in others:
        thread.join()
    return max(ended) - min(begun)
