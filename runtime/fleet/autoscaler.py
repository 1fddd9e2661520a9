"""Keeps a fleet at as many members as its load asks for: looks at it each second, begins engines where it
waits and drains some where it is calm (scaler.py decides; docs/fleet.md).

Invariant: no lock is held while an engine is begun, and what fails is logged and tried again: a fleet that
cannot grow goes on serving.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from satchel.errors import DeviceError, SatchelError
from satchel.runtime.engine.watchdog import ticking
from satchel.runtime.fleet.autoscale import Limits
from satchel.runtime.fleet.fleet import Fleet
from satchel.runtime.fleet.router import wait
from satchel.runtime.fleet.scaler import Scaler, ScalingFacts, Seen
from satchel.runtime.log import LOG

LOOK = 1.0  # seconds between two looks


class EngineSource(Protocol):
    """Where engines come from."""

    def begin(self) -> None:
        """Begins an engine, which becomes a member once it is there."""

    def end(self, name: str) -> None:
        """An engine is no longer wanted: it is not a member, or leaves."""

    def pending(self) -> Sequence[Seen]:
        """Engines that are begun and no members yet."""


class HereSource:
    """Engines of this machine: worker processes, which are members at once and join when they have loaded."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def begin(self) -> None:
        self._fleet.add()

    def end(self, name: str) -> None:
        """A member that leaves ends its process itself."""

    def pending(self) -> Sequence[Seen]:
        return ()


class Autoscaler:
    """Scales a fleet between limits until it is closed. source: None for engines of this machine."""

    def __init__(
        self,
        fleet: Fleet,
        limits: Limits,
        source: EngineSource | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet, self._clock = fleet, clock
        self._source: EngineSource = source or HereSource(fleet)
        self._scaler, self._over = Scaler(limits, clock()), threading.Event()
        self._told, self._lock = "", threading.Lock()  # the lock guards the scaler

    def begin(self) -> None:
        """Starts the thread that looks."""
        ticking(self.look, self._over, "satchel-scale", LOOK)

    def close(self) -> None:
        self._over.set()

    def facts(self) -> ScalingFacts:
        limits, scaler = self._scaler.limits, self._scaler
        pending = tuple(one.name for one in self._source.pending())
        return ScalingFacts(
            limits.least, limits.most, scaler.last.replicas, pending, limits.aim, scaler.wait, scaler.start
        )

    def bound(self, least: int, most: int) -> None:
        """Keeps the fleet between these numbers of members; the next look begins or drains what that takes.
        Raises RequestError where they contradict themselves.
        """
        with self._lock:
            self._scaler.bound(least, most, self._clock())

    def look(self) -> None:
        """One look, and what follows of it."""
        if self._fleet.closed:
            return
        seen = [*self._members(), *self._source.pending()]
        with self._lock:
            before = self._scaler.last.replicas
            steps = self._scaler.step(seen, self._clock())
            now, path = self._scaler.last.replicas, self._fleet.path.name
        if now != before:
            LOG.info("%s: %d replicas in place of %d: a new prompt would wait %.2f s",
                     path, now, before, self._scaler.wait)  # fmt: skip
        for name in steps.drop:
            LOG.error("%s: member %s is given up", path, name)
            if (member := self._fleet.members.get(name)) and member.error:
                self._fleet.give_up(DeviceError(member.error))  # if none has loaded the model yet
            self._fleet.dismiss(name)
            self._source.end(name)
        for name in steps.drain:
            # It left meanwhile, or is the last that answers: the next look decides anew.
            with suppress(SatchelError):
                if name in self._fleet.members:
                    self._fleet.drain(name)
                self._source.end(name)
        for _ in range(steps.begin):
            self._begin()

    def _begin(self) -> None:
        try:
            self._source.begin()
        except SatchelError as error:
            if str(error) != self._told:  # once, and not each second
                LOG.error("%s: no further engine: %s", self._fleet.path.name, error)
            self._told = str(error)

    def _members(self) -> list[Seen]:
        return [
            Seen(one.name, one.state, wait(one.view), one.work, one.known, one.start)
            for one in self._fleet.loads()
        ]
