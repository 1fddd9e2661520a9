"""Runs engines in turns: each in a child process that loads the model once, only one working at a time.

A crash of a child is a result: the child restarts in the engine's next mode, or its row reports the failure.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from compare_engines import MODES, Row, command

from satchel.errors import RequestError

PATIENCE = 1800.0  # seconds for one command
IDLE_SHARE = 0.05  # share of one core above which a waiting process disturbs the other
ROUNDS = 2  # loads of each seat where two may not be loaded at once
LEAST_WAIT = 0.5  # the shortest wait, in seconds, whose processor time is meaningful
SCRIPT = Path(__file__).with_name("compare_engines.py")


class EngineError(RuntimeError):
    """The engine reported an error, in one line."""


class Crashed(EngineError):
    """The engine's process died."""


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Child:
    """A child process and its pipe. close() or `with` ends it."""

    def __init__(self, argv: Sequence[str], patience: float = PATIENCE) -> None:
        self.patience = patience
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  # close() closes it
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, bufsize=0
        )
        self.waited = self.used = 0.0

    def ask(self, line: str) -> Any:
        """The answer to a command. EngineError where the answer is an error, Crashed where there is none."""
        try:
            self._pipe(self.process.stdin).write(line.encode())
            answer = self._line()
        except (BrokenPipeError, EOFError):
            raise Crashed(self._end()) from None
        self.waited, self.used = self.waited + answer["waited"], self.used + answer["used"]
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer["value"]

    def _pipe(self, pipe: IO[bytes] | None) -> IO[bytes]:
        if pipe is None:
            raise EOFError
        return pipe

    def _line(self) -> dict[str, Any]:
        """The next line. EOFError where the pipe ends before a whole line, or stays silent for too long."""
        out, found = self._pipe(self.process.stdout), b""
        while not found.endswith(b"\n"):
            if not select.select([out], [], [], self.patience)[0]:
                self.process.kill()
                raise EOFError
            piece = out.read(1 << 16)
            if not piece:
                raise EOFError
            found += piece
        answer: dict[str, Any] = json.loads(found)
        return answer

    def _end(self) -> str:
        code = self.process.wait()
        self.errors.seek(max(0, self.errors.seek(0, os.SEEK_END) - 4000))
        lines = self.errors.read().decode("utf-8", "replace").split("\n")
        last = next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
        reason = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        # After a signal, stderr rarely names the cause.
        return reason if code < 0 or not last else f"{reason}: {last}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass
class Seat:
    """An engine on one file, with the modes that are left to try."""

    name: str
    path: Path
    threads: int
    modes: tuple[str, ...] = ("default",)
    argv: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)  # sentences below the table
    facts: dict[str, Any] = field(default_factory=dict)  # the last answers of load and prepare
    samples: list[float] = field(default_factory=list)
    child: Child | None = None

    def start(self) -> Child:
        """Starts a process and loads the file."""
        if self.child is None:
            self.child = Child(self.argv or (sys.executable, str(SCRIPT), self.name))
            line = command("load", path=str(self.path), threads=self.threads, mode=self.modes[0])
            try:
                self.facts |= self.child.ask(line)
            except EngineError:
                self.close()
                raise
        return self.child

    def prepare(self, row: Row) -> None:
        """Loads where needed and warms the test up, in the first mode that survives it."""
        self.samples, self.facts = [], {k: self.facts[k] for k in ("version", "system") if k in self.facts}
        while True:
            try:
                self.facts |= self.start().ask(command("prepare", row))
                return
            except EngineError as error:
                self._fall_back(row, error)

    def measure(self, row: Row) -> None:
        """One more run. Where a crash forces another mode, all samples are dropped instead."""
        try:
            self.samples.append(row.tokens / self.start().ask(command("run")))
        except EngineError as error:
            self._fall_back(row, error)
            self.prepare(row)

    def _fall_back(self, row: Row, error: EngineError) -> None:
        """Switches to the next mode; raises the error where none is left."""
        crashed = isinstance(error, Crashed)
        if crashed:
            self.close()
        # An error (not a crash) is final in the default mode; in a fallback mode it leads to the next one.
        if len(self.modes) == 1 or (not crashed and self.modes[0] == "default"):
            raise error
        done, *rest = self.modes
        self.close()
        self.modes = tuple(rest)
        self.notes.append(
            f"{self.name} on {self.path.name}, {row.name}: {MODES.get(done, done)}: {error}; "
            f"measured with {MODES.get(rest[0], rest[0])}"
        )

    def bandwidth(self) -> float | None:
        """Read bandwidth over as many bytes as the prepared test reads; None where the engine reports
        none.
        """
        try:
            return (
                float(self.start().ask(command("bandwidth"))) if self.facts.get("bytes_per_token") else None
            )
        except EngineError as error:
            self.notes.append(f"{self.name} measured no bandwidth: {error}")
            return None

    def settle(self) -> None:
        """Notes whether the process kept a core busy while the other one worked."""
        child = self.child
        if child is not None and child.waited > LEAST_WAIT and child.used > IDLE_SHARE * child.waited:
            share = child.used / child.waited
            self.notes.append(f"{self.name} used {share:.0%} of a core while it should have waited")
        if child is not None:
            child.waited = child.used = 0.0

    def close(self) -> None:
        if self.child is not None:
            self.child.close()
            self.child = None


@contextmanager
def busy_core(wanted: bool) -> Iterator[None]:
    """A process pinned to core 0 that keeps it busy. RequestError where the system can't pin processes."""
    if not wanted:
        yield
        return
    if not hasattr(os, "sched_setaffinity"):
        raise RequestError("no process can be pinned to a core here")
    code = "import os\nos.sched_setaffinity(0, {0})\nprint(flush=True)\nwhile True: pass"
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        if worker.stdout is None or not worker.stdout.readline():
            raise RequestError("core 0 is not ours to keep busy")
        yield
    finally:
        worker.kill()
        worker.communicate()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a row; mappings are by engine."""

    model: str
    row: Row
    samples: Mapping[str, tuple[float, ...]]  # tokens per second of each run
    failures: Mapping[str, str]  # why there are no samples
    facts: Mapping[str, Mapping[str, Any]]  # the answers of load and prepare
    bandwidth: float | None = None  # readable bytes per second, for a row that decodes


def measure_row(
    model: str,
    row: Row,
    seats: Sequence[Seat],
    repeats: int,
    said: Callable[[str], None],
    apart: bool = False,
) -> Outcome:
    """Runs the seats in turn until each has its repeats or has failed. apart: no two are loaded at once; each
    is loaded ROUNDS times and makes its share of the runs.
    """
    failures: dict[str, str] = {}
    found: list[float | None] = []

    def attempt(seat: Seat, work: Callable[[Row], None]) -> None:
        try:
            work(row)
        except EngineError as error:
            failures[seat.name] = str(error)

    def take_turns(group: Sequence[Seat], wanted: int) -> None:
        for seat in group:
            said(f"{model} {row.name}: {seat.name} prepares")
            attempt(seat, seat.prepare)
        while waiting := [s for s in group if s.name not in failures and len(s.samples) < wanted]:
            for seat in waiting:
                said(f"{model} {row.name}: {seat.name}, run {len(seat.samples) + 1} of {wanted}")
                attempt(seat, seat.measure)
        found.extend(seat.bandwidth() for seat in group if seat.name not in failures)
        for seat in group:
            seat.settle()

    def alone(seat: Seat, wanted: int) -> None:
        before = list(seat.samples)
        take_turns([seat], wanted)
        seat.samples[:0] = before
        seat.close()

    try:
        with busy_core(row.busy):
            if apart:
                for seat in seats:
                    seat.close()
                    seat.samples = []
                for turn in range(ROUNDS):
                    for seat in (s for s in seats if s.name not in failures):
                        alone(seat, (repeats + turn) // ROUNDS)
            else:
                take_turns(seats, repeats)
    except RequestError as error:
        failures = {seat.name: str(error) for seat in seats}
    samples = {s.name: tuple(s.samples) for s in seats if s.name not in failures}
    facts = {s.name: dict(s.facts) for s in seats}
    return Outcome(model, row, samples, failures, facts, max(filter(None, found), default=None))
