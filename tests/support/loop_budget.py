"""Measures an event loop's turns: the processor time of its own thread between two looks at its sockets.

A turn's processor time does not depend on other programs or threads, so a loaded machine cannot make a quick
turn slow. Wall time, in which a stall of the whole interpreter shows too, is measured beside it for a quiet
machine. Collections of garbage are left out of both: their length is that of the test process's memory.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

BUDGET = 0.25  # seconds


@dataclass(frozen=True, slots=True)
class Turn:
    """Time and activity of one turn of the loop. kernel and faults show a turn in which the kernel allocated
    memory.
    """

    cpu: float = 0.0  # seconds
    wall: float = 0.0  # seconds
    requests: tuple[str, ...] = ()  # in progress during the turn, or ended in it
    kernel: float = 0.0  # seconds of cpu spent in the kernel
    faults: int = 0  # page faults

    def __str__(self) -> str:
        told = "; ".join(self.requests) or "no request"
        kernel = f"{self.kernel * 1e3:.0f} of them in the kernel, with {self.faults} page faults"
        return (
            f"{self.cpu * 1e3:.0f} ms of processor ({kernel}), {self.wall * 1e3:.0f} ms in all, during {told}"
        )


def kernel_use() -> tuple[float, int]:
    """Seconds that this thread has spent in the kernel, and its page faults."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_stime, used.ru_minflt + used.ru_majflt


class Turns(selectors.DefaultSelector):
    """A selector that times what the loop does between two calls of select().

    worst_cpu, worst_wall: the longest turn since the last `clear()`. slow: turns over the processor-time
    budget since then.
    """

    def __init__(self) -> None:
        super().__init__()
        self._active: dict[int, str] = {}
        self._ended: list[str] = []
        self._thread = 0
        self._cpu = self._wall = 0.0  # start of this turn
        self._kernel = 0.0, 0
        self._collected = self._collecting = 0.0
        self.made: asyncio.AbstractEventLoop | None = None
        self._ends: dict[int, int] = {}  # descriptors and their inodes
        self.clear()

    def clear(self) -> None:
        self.worst_cpu = self.worst_wall = Turn()
        self.slow: list[Turn] = []

    def loop(self) -> asyncio.AbstractEventLoop:
        made: Any = asyncio.SelectorEventLoop(self)
        pair = made._ssock.fileno(), made._csock.fileno()  # other threads wake the loop by it
        self.made, self._ends = made, {number: os.fstat(number).st_ino for number in pair}
        return cast(asyncio.AbstractEventLoop, made)

    @property
    def can_be_woken(self) -> bool:
        """Whether the descriptors by which other threads wake the loop are still its own. Where something
        else closes one, such as what closes its own twice, the loop sleeps for ever once it has no timer.
        """
        with suppress(OSError):
            return all(os.fstat(number).st_ino == inode for number, inode in self._ends.items())
        return self.made is None or self.made.is_closed()

    def select(self, timeout: float | None = None) -> Any:
        self._end_turn()
        found = super().select(timeout)
        self._cpu, self._wall, self._collected = time.thread_time(), time.perf_counter(), 0.0
        self._kernel = kernel_use()
        return found

    def _end_turn(self) -> None:
        if self._thread != threading.get_ident():  # the first turn has no start
            self._thread = threading.get_ident()
            return
        cpu = time.thread_time() - self._cpu - self._collected
        wall = time.perf_counter() - self._wall - self._collected
        if cpu > self.worst_cpu.cpu or wall > self.worst_wall.wall or cpu > BUDGET:
            kernel, faults = (now - then for now, then in zip(kernel_use(), self._kernel, strict=True))
            turn = Turn(cpu, wall, (*self._active.values(), *self._ended), kernel, int(faults))
            self.worst_cpu = max(self.worst_cpu, turn, key=lambda t: t.cpu)
            self.worst_wall = max(self.worst_wall, turn, key=lambda t: t.wall)
            self.slow += [turn] if cpu > BUDGET else []
        self._ended.clear()

    def collecting(self, phase: str, info: dict[str, int]) -> None:
        """A callback of gc.callbacks."""
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            self._collected += time.thread_time() - self._collecting

    def around(self, app: Any) -> Any:
        """The application, wrapped so that requests in progress are recorded."""

        async def noted(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            told, begun = f"{scope['method']} {scope['path']:.100}", b""

            async def heard() -> Any:
                nonlocal begun
                message = await receive()
                if not begun and message.get("body"):
                    begun = message["body"][:200]
                    self._active[id(scope)] = f"{told} {begun!r}"
                return message

            self._active[id(scope)] = told
            try:
                await app(scope, heard, send)
            finally:
                self._ended.append(self._active.pop(id(scope)))

        return noted


# The loops of the servers in this process.
RUNNING: list[Turns] = []


@contextmanager
def timed() -> Iterator[Turns]:
    """Times the loop that is about to run."""
    turns = Turns()
    RUNNING.append(turns)
    gc.callbacks.append(turns.collecting)
    try:
        yield turns
    finally:
        gc.callbacks.remove(turns.collecting)
        RUNNING.remove(turns)


class Prober:
    """Probes a server's health without a pause while other requests run, once at least."""

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask, self._stop = ask, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.answers: list[int] = []
        self.worst = 0.0

    def _run(self) -> None:
        while True:
            began = time.perf_counter()
            self.answers.append(self._ask())
            self.worst = max(self.worst, time.perf_counter() - began)
            if self._stop.wait(0.005):
                return

    def __enter__(self) -> Prober:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
