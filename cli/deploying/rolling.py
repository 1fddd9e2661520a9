"""A version of a model that takes the places of the one before, engine by engine, on a cluster that has no
room for both at once.

Invariant: the engines of both are never more than those of the old one were, and all of these but one answer
at any time. Until the last step everything can be undone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from satchel.errors import DeviceError
from satchel.runtime.placement.options import replica_range

PAUSE = 0.5  # seconds between two questions
LEAST = 2  # engines that the old version must have: one of them answers while the other is replaced


class ServerCall(Protocol):
    """Asks the server: a path and, for POST, a body. Raises DeviceError for a refusal."""

    def __call__(self, path: str, body: Any = None) -> Any: ...


class Rolling:
    """old: the version that serves. replicas: of the new one's table. seconds: within which an engine must
    leave, or be there.
    """

    def __init__(self, ask: ServerCall, old: str, replicas: str | int, seconds: float) -> None:
        self._ask, self._old, self._seconds = ask, old, seconds
        self._range = self._scaling(old)
        self.engines = self._ready(old)
        self._new, self._new_range = "", replica_range(replicas)

    @property
    def possible(self) -> bool:
        return self.engines >= LEAST

    def make_room(self) -> None:
        """The old version gives up one of its engines. Raises DeviceError where it has none to give up."""
        if not self.possible:
            raise DeviceError(
                f"{self._old} has {self.engines} engine: in place it takes {LEAST} at least, of which one"
                " answers while the other is replaced"
            )
        self._shrink(self.engines - 1)

    @property
    def replicas(self) -> str:
        """With which the new version begins, in place of its table's: one engine."""
        return f"1..{max(self._new_range[1], self.engines)}"

    def begin(self, version: str) -> None:
        """The new version has loaded, and has one engine."""
        self._new = version
        self._bound(version, 1, 1)

    def steps(self) -> Iterator[Mapping[str, float]]:
        """Moves one engine after another, and leaves the last one to finish(). Before each it gives the
        weights that the versions are to have: as many parts as each has engines meanwhile.
        """
        for moved in range(2, self.engines):
            yield {
                self._old: (self.engines - moved) / (self.engines - 1),
                self._new: (moved - 1) / (self.engines - 1),
            }
            self._shrink(self.engines - moved)
            self._bound(self._new, moved, moved)
            if self._grown(self._new, moved) < moved:
                raise DeviceError(f"{self._new} has no {moved} engines within {self._seconds:g} s")

    def finish(self) -> int:
        """The old version is served no more: the new one has its last place too, and is scaled as its table
        says. Gives its engines, fewer than there were where another does not come in time.
        """
        least, most = self._new_range
        wanted = min(self.engines, most)
        self._bound(self._new, max(wanted, least), most)
        self._bound(self._new, least, most)
        return self._grown(self._new, wanted)

    def undo(self) -> int:
        """The new version is served no more: the old one has its engines again. Gives how many."""
        least, most = self._range
        self._bound(self._old, max(self.engines, least), max(self.engines, most))
        found = self._grown(self._old, self.engines)
        self._bound(self._old, least, most)
        return found

    def _scaling(self, version: str) -> tuple[int, int]:
        found = self._ask(f"/fleet?model={version}")["scaling"]
        if found is None:
            raise DeviceError(f"{version} has a fixed number of engines: replicas of its table names a range")
        return int(found["least"]), int(found["most"])

    def _members(self, version: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask(f"/fleet?model={version}")["members"]
        return found

    def _ready(self, version: str) -> int:
        return sum(member["state"] == "ready" for member in self._members(version))

    def _bound(self, version: str, least: int, most: int) -> None:
        self._ask("/fleet/scaling", {"model": version, "least": least, "most": most})

    def _shrink(self, engines: int) -> None:
        """Drains engines of the old version, and waits until they have left."""
        self._bound(self._old, engines, engines)
        self._until(
            lambda: len(self._members(self._old)) <= engines, f"an engine of {self._old} has not left"
        )

    def _grown(self, version: str, engines: int) -> int:
        """Waits for engines; gives how many there are, also where some do not come."""
        end = time.monotonic() + self._seconds
        while (found := self._ready(version)) < engines and time.monotonic() < end:
            time.sleep(PAUSE)
        return found

    def _until(self, done: Callable[[], bool], lacking: str) -> None:
        end = time.monotonic() + self._seconds
        while not done():
            if time.monotonic() >= end:
                raise DeviceError(f"{lacking} within {self._seconds:g} s")
            time.sleep(PAUSE)
