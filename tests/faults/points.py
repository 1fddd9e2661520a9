"""One point of a table: an operation with a fault in a forked process, and its outcome.

Invariant: whatever happens to the forked process, this one learns how it ended: by a value, by an error for
users, by a traceback, by a signal, or not at all.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE = float(
    os.environ.get("FAULTS_PATIENCE", "60")
)  # seconds until a point hangs; none takes one on a quiet machine
OK, CLEAN, WRONG, CORRUPT, LEFT, HANG, TRACEBACK, CRASH = (
    "ok", "clean error", "wrong result", "corrupt file", "left behind", "hang", "traceback", "crash",
)  # fmt: skip
BAD = (WRONG, CORRUPT, LEFT, HANG, TRACEBACK, CRASH)


@dataclass(slots=True)
class Ending:
    """How a forked process ended."""

    kind: str
    value: Any = None  # the function's result
    text: str = ""  # what it printed or raised
    calls: int = 0
    fired: int = 0

    @property
    def killed(self) -> bool:
        return self.kind == CRASH and self.text.startswith("SIGKILL")


def forked(run: Callable[[], Any], log: Path, patience: float = PATIENCE) -> Ending:
    """Runs the function in a forked process whose output goes to `log`; the value is passed as JSON."""
    source, sink = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(source)
        _child(run, sink, log, patience)
    os.close(sink)
    try:
        return _await(pid, source, log, patience)
    finally:
        os.close(source)


def _child(run: Callable[[], Any], sink: int, log: Path, patience: float) -> None:
    try:
        os.setpgid(0, 0)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        faulthandler.enable(file=2)
        faulthandler.dump_traceback_later(patience * 0.8, file=2)
        told = run()
        os.write(sink, json.dumps(told).encode())
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def _await(pid: int, source: int, log: Path, patience: float) -> Ending:
    end, told = time.monotonic() + patience, b""
    while True:
        ready, _, _ = select.select([source], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            _end_group(pid)
            os.waitpid(pid, 0)
            return Ending(HANG, text=_tail(log))
        piece = os.read(source, 1 << 16)
        if not piece:
            break
        told += piece
    _, status = os.waitpid(pid, 0)
    _end_group(pid)
    text = _tail(log)
    if os.WIFSIGNALED(status):
        return Ending(CRASH, text=f"{signal.Signals(os.WTERMSIG(status)).name}: {text}")
    if os.WEXITSTATUS(status) or not told:
        return Ending(TRACEBACK, text=text)
    return Ending(OK, json.loads(told), text)


def _end_group(pid: int) -> None:
    """Kills the process and its descendants."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _tail(log: Path) -> str:
    try:
        return log.read_text(errors="replace")[-6000:]
    except OSError:
        return ""


@dataclass
class Row:
    """A row of a table: outcomes of one kind of point."""

    name: str
    points: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    # Outcomes that must not be, with their text.
    bad: list[tuple[str, str, str]] = field(default_factory=list)
    note: str = ""

    def add(self, place: str, kind: str, text: str = "") -> None:
        self.points += 1
        self.kinds[kind] += 1
        if kind in BAD:
            self.bad.append((place, kind, text))

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name, "points": self.points, "kinds": dict(self.kinds),
            "note": self.note, "bad": self.bad,
        }  # fmt: skip


COLUMNS = (CLEAN, OK, WRONG, CORRUPT, LEFT, HANG, TRACEBACK, CRASH)
TITLES = ("clean errors", "successes", "wrong", "corrupt", "left", "hangs", "tracebacks", "crashes")


def table(rows: list[Row]) -> str:
    """The rows as text, with a sum."""
    width = max([len(row.name) for row in rows], default=0)
    total = Row("in all", sum(r.points for r in rows), sum((r.kinds for r in rows), Counter()))
    head = f"{'':<{width}}  {'points':>7}" + "".join(f"  {title:>12}" for title in TITLES)
    lines = [
        f"{row.name:<{width}}  {row.points:>7}" + "".join(f"  {row.kinds[c]:>12}" for c in COLUMNS)
        + (f"  {row.note}" if row.note else "")
        for row in [*rows, total]
    ]  # fmt: skip
    return "\n".join([head, *lines])
