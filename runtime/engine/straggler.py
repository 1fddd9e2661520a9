"""Finds a member of a group that keeps the others waiting: a GPU that is hot, or has lower clocks. Each
member counts the seconds that it waited; the one that is slow waits least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from satchel.runtime.device.group import GroupDevice
from satchel.runtime.log import LOG

WINDOW = 60.0  # seconds that are looked at
MOST = 0.2  # part of them that the others may wait for a member
BUSY = 0.5  # part of them in which steps must have run


class Straggler:
    """Watches a group. clock: monotonic seconds. Only the engine's thread uses it."""

    def __init__(self, group: GroupDevice, clock: Callable[[], float]) -> None:
        self.group, self.clock = group, clock
        self._began, self._waited, self._busy = clock(), group.group_info().waited, 0.0

    def step(self, seconds: float) -> str:
        """Counts a step that took so long. At the end of a window gives the warning, which is logged; "" if
        there is none.
        """
        self._busy += seconds
        now = self.clock()
        if now - self._began < WINDOW:
            return ""
        waited = self.group.group_info().waited
        more = [after - before for before, after in zip(self._waited, waited, strict=True)]
        said = warning(
            self.group.name, [d.name for d in self.group.members], more, self._busy, now - self._began
        )
        if said:
            LOG.warning("%s", said)
        self._began, self._waited, self._busy = now, waited, 0.0
        return said


def warning(group: str, names: Sequence[str], waited: Sequence[float], busy: float, window: float) -> str:
    """What to say of members that waited so many seconds of a window, in which steps took `busy` seconds."""
    slow = min(range(len(names)), key=waited.__getitem__)
    others = [seconds for i, seconds in enumerate(waited) if i != slow]
    if not others or busy < BUSY * window:
        return ""
    part = (min(others) - waited[slow]) / busy
    if part <= MOST:
        return ""
    return (
        f"{group}: {names[slow]} is slower than the other members, which waited {part:.0%} of the last "
        f"{window:.0f} s for it: look at its temperature and clocks, or leave it out with -dev"
    )
