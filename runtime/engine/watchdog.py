"""Watchdog: tells whether an engine makes progress, without waiting for it.

Time is counted in heartbeats, and clocks are never compared. Whatever stops a machine, a program or its clock
for an hour (suspend, a frozen container, a debugger) costs one beat, so only a failure while the rest runs
counts against the engine. A worker process sends its beats; those of a thread are counted here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from satchel.errors.threads import begin

BEAT = 0.5  # seconds between beats
MISSED = 6  # consecutive missed beats after which an engine is not ready
# Seconds after which a piece of work counts as stuck, unless longer pieces have finished.
SLOW = {"step": 60.0, "compile": 300.0, "load": 300.0}
LONGER = 4  # a piece counts as stuck after 4 times the longest finished one
HOPELESS = 10  # an engine is ended after 10 times the longest finished piece


class Pulse:
    """Activity of a thread: it writes, any thread reads. turns: number of pieces of work begun."""

    def __init__(self) -> None:
        self.doing, self.turns = "", 0

    def begin(self, doing: str) -> None:
        """A piece of work begins. doing: a key of SLOW."""
        self.doing = doing
        self.turns += 1

    def end(self) -> None:
        """The thread becomes idle."""
        self.doing = ""

    @contextmanager
    def within(self, doing: str) -> Iterator[None]:
        """Work of another kind inside a piece; the piece continues after it as a new one."""
        before = self.doing
        self.begin(doing)
        try:
            yield
        finally:
            self.begin(before)


@dataclass(frozen=True, slots=True)
class Beat:
    """One observation of a pulse."""

    doing: str = ""  # current work; "": idle
    stalled: float = 0.0  # seconds for which it has been the same piece
    longest: float = 0.0  # seconds of the longest finished piece
    trouble: str = ""  # why the engine cannot work at all


class Beats:
    """Observes a pulse. pulse: gives the current one, because an engine may be replaced; None without one."""

    def __init__(self, pulse: Callable[[], Pulse | None], seconds: float = BEAT) -> None:
        self._pulse, self._seconds = pulse, seconds
        self._turn, self._same, self._longest = -1, 0, 0

    def look(self, trouble: str = "") -> Beat:
        """The next beat, `seconds` after the last."""
        pulse = self._pulse()
        doing, turn = (pulse.doing, pulse.turns) if pulse else ("", -1)
        if doing and turn == self._turn:
            self._same += 1
        else:
            self._longest = max(self._longest, self._same)
            self._turn, self._same = turn, 0
        return Beat(doing, self._same * self._seconds, self._longest * self._seconds, trouble)


@dataclass
class Watchdog:
    """Judges beats. Not thread-safe."""

    worker_timeout: float  # seconds without a beat after which the engine is hopeless; 0: never
    step_timeout: float  # seconds of one piece of work after which the engine is hopeless; 0: never
    seconds: float = BEAT  # between calls of tick()
    loaded: bool = False
    missed: int = 0
    beat: Beat = field(default_factory=Beat)

    def heard(self, beat: Beat | None = None) -> None:
        """A beat came, or a message, which is as good a sign of life."""
        self.missed = 0
        self.beat = beat or self.beat

    def tick(self, unread: bool = False) -> None:
        """`seconds` have passed. unread: unread messages are waiting, so the engine is alive."""
        if not unread:
            self.missed += 1

    @property
    def silent(self) -> float:
        """Seconds without a beat."""
        return self.missed * self.seconds

    @property
    def trouble(self) -> str:
        """Why the engine is not ready, as far as beats tell; "" if it is."""
        if self.missed >= MISSED:
            return f"the engine has given no sign of life for {self.silent:.0f} s"
        if self.beat.trouble:
            return self.beat.trouble
        slow = SLOW.get(self.beat.doing, 0.0)
        usual = max(min(slow, self.step_timeout or slow), LONGER * self.beat.longest)
        if self.beat.doing and self.beat.stalled >= usual:
            return f"the engine has been busy with one {self.beat.doing} for {self.beat.stalled:.0f} s"
        return ""

    @property
    def hopeless(self) -> str:
        """Why the engine must be ended; "" if it need not. During the load it may be silent for as long as
        one piece of work may take, because it is not ready anyway.
        """
        most = self.worker_timeout if self.loaded else self.step_timeout
        if most and self.silent >= most:
            return f"gave no sign of life for {self.silent:.0f} s"
        longest = max(self.step_timeout, HOPELESS * self.beat.longest)
        if self.step_timeout and self.beat.doing and self.beat.stalled >= longest:
            return f"was busy with one {self.beat.doing} for {self.beat.stalled:.0f} s"
        return ""


def ticking(tick: Callable[[], object], over: threading.Event, name: str, seconds: float = BEAT) -> None:
    """Calls tick() every `seconds` seconds in a thread of its own, until `over` is set."""

    def run() -> None:
        while not over.wait(seconds):
            tick()

    begin(threading.Thread(target=run, name=name, daemon=True))
