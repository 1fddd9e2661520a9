"""A worker process that crashes on demand, for tests. Environment variables say when:

- SATCHEL_TEST_POISON: a token that kills the process where it occurs twice in a row.
- SATCHEL_TEST_ONCE: a file; a process that is older than the file dies in its tenth step. (A process in the
  sandbox can't remove the file.)
- SATCHEL_TEST_SLOW: seconds by which each step is delayed.
- SATCHEL_TEST_HOLD: a file; a process that is older than the file makes as many steps more as the file has
  bytes, and then stands still while it exists. So a process can be killed in the middle of its work.
- SATCHEL_TEST_STILLBORN: a file; while it exists, a process dies when its model is loaded.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from satchel.runtime.api.model import Model
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.host_sampling import Sampled
from satchel.runtime.engine.program import Program
from satchel.runtime.worker import child

POISON = int(os.environ.get("SATCHEL_TEST_POISON", "-1"))
ONCE = Path(os.environ.get("SATCHEL_TEST_ONCE", "/nowhere"))
HOLD = Path(os.environ.get("SATCHEL_TEST_HOLD", "/nowhere"))
STILLBORN = Path(os.environ.get("SATCHEL_TEST_STILLBORN", "/nowhere"))
SLOW = float(os.environ.get("SATCHEL_TEST_SLOW", "0"))
SAMPLE, FILL, SERVE = Engine.sample, Engine.fill, child.Worker.serve
BORN = time.time_ns()
steps = 0
left: int | None = None  # steps before it stands still; None: the file is not there


def hold() -> None:
    """Before a step: counts it, and stands still where the file says so."""
    global left
    while True:
        most = steps_before_hold()
        if most is None:
            left = None
            return
        left = most if left is None else left
        if left > 0:
            left -= 1
            return
        time.sleep(0.01)


def steps_before_hold() -> int | None:
    """What the file says to this process; None: nothing."""
    with suppress(OSError):
        found = HOLD.stat()
        return found.st_size if found.st_mtime_ns > BORN else None
    return None


def sample(self: Engine, entries: Sequence[BatchEntry]) -> Sequence[int | Sampled]:
    global steps
    steps += 1
    if steps == 10 and ONCE.exists() and ONCE.stat().st_mtime_ns > BORN:
        os.kill(os.getpid(), signal.SIGKILL)
    return SAMPLE(self, entries)


def fill(self: Engine, entries: Sequence[BatchEntry], rows: int, output: str, *, every: bool) -> Program:
    if any(pair == (POISON, POISON) for e in entries for pair in pairwise(e.ids)):
        ctypes.string_at(0)  # a crash of this very thread: the signal of kill() may arrive after the step
    time.sleep(SLOW)
    hold()
    return FILL(self, entries, rows, output, every=every)


def serve(self: child.Worker, model: Model, source: BinaryIO) -> None:
    if STILLBORN.exists():
        os.abort()
    SERVE(self, model, source)


def main() -> None:
    Engine.sample, Engine.fill = sample, fill  # type: ignore[method-assign]
    child.Worker.serve = serve  # type: ignore[method-assign]
    child.main()
