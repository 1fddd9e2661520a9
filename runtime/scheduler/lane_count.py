"""How many steps of a pipeline the decoding sequences are divided among. It is measured: what a step of half
the rows takes beside another one says nothing of what a step of all rows takes alone, for steps that overlap
share cores, memory bandwidth and links.

Measured is a round: the time in which each decoding sequence gets a token. For each number of rows, to an
eighth, some rounds with every number of lanes are compared, right after each other. That is repeated after
FIRST rounds, and then after four times as many each time, as long as the outcome is the same.

Invariant: more lanes than one are used only where their rounds were shorter by GAIN when both were last
compared, but for the rounds of the comparison itself.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import fmean, median

ROUNDS = 24  # that are measured
ENDS = 3  # of the shortest and of the longest that are left out: plans were compiled, others used the cores
GAIN = 0.05  # by which rounds must be shorter: less is noise
SOME, FAR = 4, 1.4  # after so many rounds that are longer by this factor no more are tried
FIRST, AGAIN, LAST = 256, 4, 16384  # rounds until the next comparison, by what they grow, and the most
OCTAVE = 4  # sizes between a number of rows and twice as many, each with a decision of its own


@dataclass(slots=True)
class KeptLanes:
    """lanes: that are used. left: rounds until the next comparison. hold: `left` after the last one."""

    lanes: int = 1
    left: int = 0
    hold: int = FIRST


class LaneCount:
    """of() is asked when a step is planned, ended() is told when one has ended."""

    def __init__(self) -> None:
        self._decisions: dict[int, KeptLanes] = {}  # by size
        self._size, self._most = -1, 1
        self._lanes = 1  # in use: those of the decision, or that are tried
        self._seconds: dict[int, float] = {}  # of a round for each row, by lanes, of the comparison under way
        self._untried: list[int] = []
        self._rounds: deque[float] = deque(maxlen=ROUNDS)
        self._part: list[tuple[float, int]] = []  # seconds and rows of the steps of a round so far
        self._before = -1.0  # when the step before ended; -1: it had a prompt
        self._skipped = 0  # steps to come that were begun with another number of lanes

    def of(self, rows: int, most: int) -> int:
        """Lanes for so many decoding sequences, of at most so many."""
        most = min(most, rows)
        if most < 2:
            return 1
        size = round(OCTAVE * math.log2(rows))
        if size != self._size or most != self._most:
            self._size, self._most = size, most
            self._use(self._decision(size).lanes)
        return self._lanes

    def ended(self, rows: int, now: float) -> None:
        """A step of so many decoding sequences has ended; 0: one that had a prompt."""
        before, self._before = self._before, now if rows else -1.0
        if self._size < 0:
            return
        if not rows or before < 0 or self._skipped:
            self._skipped = max(0, self._skipped - 1)
            self._part.clear()
            return
        self._part.append((now - before, rows))
        if len(self._part) >= self._lanes:
            self._rounds.append(sum(s for s, _ in self._part) / sum(n for _, n in self._part))
            self._part.clear()
            self._note_round()

    def _decision(self, size: int) -> KeptLanes:
        """For a number of rows that was never seen it begins with that of the nearest within an octave."""
        found = self._decisions.get(size)
        if found is None:
            near = min(self._decisions, key=lambda other: abs(other - size), default=size + 2 * OCTAVE)
            lanes = self._decisions[near].lanes if abs(near - size) <= OCTAVE else 1
            found = self._decisions[size] = KeptLanes(min(lanes, self._most))
        return found

    def _use(self, lanes: int, *, trying: bool = False) -> None:
        """Begins to measure with this number of lanes."""
        if not trying:
            self._untried.clear()
            self._seconds.clear()
        self._skipped = 0 if lanes == self._lanes else lanes + self._lanes
        self._lanes = lanes
        self._rounds.clear()
        self._part.clear()

    def _note_round(self) -> None:
        found = self._decision(self._size)
        if not self._seconds:  # nothing is compared
            found.left -= 1
            if found.left > 0 or len(self._rounds) < ROUNDS:
                return
            self._untried = [n for n in range(self._most, 0, -1) if n != self._lanes]
        elif len(self._rounds) < ROUNDS and not self._far_off():
            return
        kept = sorted(self._rounds)[ENDS:-ENDS] if len(self._rounds) == ROUNDS else self._rounds
        self._seconds[self._lanes] = fmean(kept)
        if self._untried:
            self._use(self._untried.pop(), trying=True)
            return
        best = min(self._seconds, key=lambda n: (self._seconds[n] * (1 if n == 1 else 1 + GAIN), n))
        found.hold = min(AGAIN * found.hold, LAST) if best == found.lanes else FIRST
        found.lanes, found.left = best, found.hold
        self._use(best)

    def _far_off(self) -> bool:
        """Whether what is tried is so slow that a few rounds say it."""
        return len(self._rounds) >= SOME and median(self._rounds) > FAR * min(self._seconds.values())
