"""Which members of a fleet are begun and which are drained, so that it has as many as the predicted wait asks
for (autoscale.py).

Invariants: a pure function of what it is shown, of the time given with it, and of its earlier decisions. The
last member that serves is never drained. Members that are begun count until they serve or fail, so that none
is begun twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from satchel.runtime.fleet.autoscale import Decision, Limits, check, wanted

RETRY, MOST_RETRY = 15.0, 300.0  # seconds after a failed member before another is begun, doubled each time
STARTS = 16  # cold starts that are remembered


class Seen(NamedTuple):
    """A member, or one that is begun and is none yet."""

    name: str
    state: str  # of a member: joining, ready, draining or failed; pending: begun, and no member yet
    wait: float = 0.0  # seconds that a new prompt would wait there, predicted
    work: int = 0  # requests and calls that it has
    known: int = 0  # blocks in its cache
    start: float = 0.0  # seconds from its beginning until it served; 0: not known yet


class Steps(NamedTuple):
    """What is to be done."""

    begin: int = 0  # members
    drain: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()  # that failed and will not serve


@dataclass(frozen=True, slots=True)
class ScalingFacts:
    """How a fleet is scaled, for people and metrics."""

    least: int
    most: int
    wanted: int  # members
    pending: tuple[str, ...]  # engines that are begun and no members yet
    wait_aim: float  # seconds that a new prompt may wait
    wait_seconds: float  # that it would wait, mean over the members
    start_seconds: float  # of a cold start, mean; 0: none was seen


class FleetScaling(Protocol):
    """What scales a fleet."""

    def facts(self) -> ScalingFacts:
        """How it is scaled now."""

    def bound(self, least: int, most: int) -> None:
        """Keeps the fleet between these numbers of members from now on. Raises RequestError for none."""


@dataclass(slots=True)
class Scaler:
    """limits: of the fleet. now: the time at which it begins, with `least` members."""

    limits: Limits
    now: float
    last: Decision = field(init=False)
    wait: float = 0.0  # mean of the predicted waits at the last look, in seconds
    _starts: dict[str, float] = field(default_factory=dict)  # by member, those of the last STARTS
    _recent: deque[str] = field(default_factory=lambda: deque(maxlen=STARTS))
    _failures: int = 0  # since a member last joined
    _failed_at: float = float("-inf")
    _failed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        check(self.limits)
        self.last = Decision(self.limits.least, self.now)

    @property
    def start(self) -> float:
        """Mean seconds of a cold start: from the beginning of a member until it served; 0: none was seen."""
        return sum(self._starts.values()) / len(self._starts) if self._starts else 0.0

    def bound(self, least: int, most: int, now: float) -> None:
        """Other limits, from now on. Raises RequestError where they contradict themselves."""
        limits = self.limits._replace(least=least, most=most)
        check(limits)
        self.limits, replicas = limits, min(max(self.last.replicas, least), most)
        if replicas != self.last.replicas:
            self.last = Decision(replicas, now)

    def step(self, seen: Sequence[Seen], now: float) -> Steps:
        """What is to be done now."""
        self._learn(seen, now)
        ready = [member for member in seen if member.state == "ready"]
        pending = [member for member in seen if member.state == "pending"]
        coming = len(pending) + sum(member.state == "joining" for member in seen)
        waits = [member.wait for member in ready]
        self.wait = sum(waits) / len(waits) if waits else 0.0
        # What was added shows only once it serves: no more are added within a cold start.
        limits = self.limits._replace(up=max(self.limits.up, max(self._starts.values(), default=0.0)))
        self.last = wanted(waits, now, self.last, limits)
        lacking = self.last.replicas - len(ready) - coming
        drop = tuple(member.name for member in seen if member.state == "failed")
        if lacking > 0:
            return Steps(begin=lacking if now >= self._next_try else 0, drop=drop)
        return Steps(drain=self._leaving(ready, pending, -lacking), drop=drop)

    @property
    def _next_try(self) -> float:
        return self._failed_at + min(RETRY * 2.0 ** max(0, self._failures - 1), MOST_RETRY)

    def _learn(self, seen: Sequence[Seen], now: float) -> None:
        """Cold starts, and failures."""
        for member in seen:
            if member.state == "failed" and member.name not in self._failed:
                self._failed.add(member.name)
                self._failures, self._failed_at = self._failures + 1, now
            if member.start > 0 and member.name not in self._starts:
                if len(self._recent) == STARTS:
                    del self._starts[self._recent[0]]
                self._recent.append(member.name)
                self._starts[member.name] = member.start
                self._failures, self._failed_at = 0, float("-inf")
        self._failed &= {member.name for member in seen}

    @staticmethod
    def _leaving(ready: Sequence[Seen], pending: Sequence[Seen], count: int) -> tuple[str, ...]:
        """Those that are no members yet; then those with the least to do, of equals with the least cached."""
        first = [member.name for member in pending[::-1]] if ready else []
        serving = sorted(ready, key=lambda member: (member.work, member.known))[: max(0, len(ready) - 1)]
        return tuple([*first, *(member.name for member in serving)][:count])
