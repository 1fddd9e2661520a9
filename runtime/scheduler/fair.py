"""Fair sharing between users: weighted fair queuing over what they cost (start-time fair queuing; Goyal, Vin,
Cheng, 1996).

Each user has a virtual time that grows by cost over weight, in tokens or seconds; the one that is furthest
behind goes first. A user who comes back is set to the time of those who stayed, so that idling earns nothing.
"""

from __future__ import annotations

KNOWN = 4096  # names with a debt that are remembered


class Fair:
    def __init__(self) -> None:
        self._time: dict[str, float] = {}
        self._now = 0.0

    def arrive(self, user: str) -> None:
        """A request of the user came in."""
        self._time[user] = max(self._time.get(user, 0.0), self._now)

    def charge(self, user: str, cost: float, weight: float) -> None:
        """So much was done for the user."""
        start = self._time.get(user, self._now)
        self._now = max(self._now, start)
        self._time[user] = start + cost / weight

    def virtual_time(self, user: str) -> float:
        """The user's virtual time: who has less has had less."""
        return self._time.get(user, self._now)

    def forget(self, present: set[str]) -> None:
        """Drops users who have no request and no debt, so that names do not pile up. Where nobody is present
        all begin anew, and the debts of more than KNOWN names are forgiven.
        """
        if not present:
            self._now = max((self._now, *self._time.values()))
        kept = {u: t for u, t in self._time.items() if u in present or t > self._now}
        self._time = kept if len(kept) <= KNOWN else {u: t for u, t in kept.items() if u in present}

    @property
    def names(self) -> int:
        """How many users it knows."""
        return len(self._time)
