"""Whether an engine makes progress, as a program learns without waiting for it.

Time is counted in beats, and no clock is compared with another: whatever stops a machine, a program or its
clock for an hour (suspend, a frozen container, a debugger) costs one beat, so only what fails while the
rest runs is held against it. A worker process sends its beats; those of a thread are counted here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from satchel.quant.threads import begin

BEAT = 0.5  # seconds between two beats
MISSED = 6  # beats in a row whose absence makes an engine not ready
# Seconds after which work of a kind is stuck, unless longer work was seen to end.
SLOW = {"step": 60.0, "compile": 300.0, "load": 300.0}
LONGER = 4  # times the longest work that was seen to end
HOPELESS = 10  # the same, for what is ended


class Pulse:
    """What a thread is doing: it writes, any thread reads. turns: pieces of work that it began."""

    def __init__(self) -> None:
        self.doing, self.turns = "", 0

    def begin(self, doing: str) -> None:
        """A piece of work begins: a key of SLOW."""
        self.doing = doing
        self.turns += 1

    def end(self) -> None:
        """There is nothing to do."""
        self.doing = ""

    @contextmanager
    def within(self, doing: str) -> Iterator[None]:
        """Work of another kind in the middle of a piece, which goes on after it as one of its own."""
        before = self.doing
        self.begin(doing)
        try:
            yield
        finally:
            self.begin(before)


@dataclass(frozen=True, slots=True)
class Beat:
    """One look at a pulse. doing: the work at hand, "" for none. stalled: seconds for which it has been the
    same piece. longest: seconds of the longest piece that ended. trouble: why nothing can be done at all.
    """

    doing: str = ""
    stalled: float = 0.0
    longest: float = 0.0
    trouble: str = ""


class Beats:
    """Looks at a pulse. pulse: gives the one at hand, for an engine may be made anew; None for none."""

    def __init__(self, pulse: Callable[[], Pulse | None], seconds: float = BEAT) -> None:
        self._pulse, self._seconds = pulse, seconds
        self._turn, self._same, self._longest = -1, 0, 0

    def look(self, trouble: str = "") -> Beat:
        """The next beat, `seconds` after the one before."""
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
    """Judges beats. worker_timeout: seconds without a beat, step_timeout: seconds of one piece of work, after
    which an engine is hopeless; 0: never. seconds: between two calls of tick(). Not thread-safe.
    """

    worker_timeout: float
    step_timeout: float
    seconds: float = BEAT
    loaded: bool = False
    missed: int = 0
    beat: Beat = field(default_factory=Beat)

    def heard(self, beat: Beat | None = None) -> None:
        """Something came: a beat, or a message, which is as good a sign of life."""
        self.missed = 0
        self.beat = beat or self.beat

    def tick(self, unread: bool = False) -> None:
        """`seconds` went by. unread: something came that was not read yet, so the engine is alive."""
        if not unread:
            self.missed += 1

    @property
    def silent(self) -> float:
        """Seconds without a beat."""
        return self.missed * self.seconds

    @property
    def trouble(self) -> str:
        """Why the engine is not ready, as far as beats tell; "" where they do not."""
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
        """Why the engine must be ended; "" where there is no reason. Until it is loaded, it may be silent
        for as long as one piece of work may take: it is not ready anyway.
        """
        most = self.worker_timeout if self.loaded else self.step_timeout
        if most and self.silent >= most:
            return f"gave no sign of life for {self.silent:.0f} s"
        longest = max(self.step_timeout, HOPELESS * self.beat.longest)
        if self.step_timeout and self.beat.doing and self.beat.stalled >= longest:
            return f"was busy with one {self.beat.doing} for {self.beat.stalled:.0f} s"
        return ""


def ticking(tick: Callable[[], object], over: threading.Event, name: str, seconds: float = BEAT) -> None:
    """Calls tick() every so many seconds, in a thread of its own, until it is over."""

    def run() -> None:
        while not over.wait(seconds):
            tick()

    begin(threading.Thread(target=run, name=name, daemon=True))
