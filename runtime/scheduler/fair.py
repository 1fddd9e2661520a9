"""Fair sharing between users: start-time fair queuing (Goyal, Vin, Cheng, 1996), a form of weighted fair
queuing.

Each user has a virtual time that grows by cost over weight, in tokens or seconds; the user with the smallest
goes first. A user who returns gets the virtual time of those who stayed, so that idling earns nothing.
"""

from __future__ import annotations

KNOWN = 4096  # most remembered names with a debt


class Fair:
    def __init__(self) -> None:
        self._time: dict[str, float] = {}
        self._now = 0.0

    def arrive(self, user: str) -> None:
        """A request of the user arrived."""
        self._time[user] = max(self._time.get(user, 0.0), self._now)

    def charge(self, user: str, cost: float, weight: float) -> None:
        """Charges the user for work."""
        start = self._time.get(user, self._now)
        self._now = max(self._now, start)
        self._time[user] = start + cost / weight

    def virtual_time(self, user: str) -> float:
        """The user's virtual time: the smaller, the less the user has had."""
        return self._time.get(user, self._now)

    def forget(self, present: set[str]) -> None:
        """Drops users without requests and without a debt, so that names do not accumulate. If no user is
        present, all start anew, and debts of more than KNOWN names are forgiven.
        """
        if not present:
            self._now = max((self._now, *self._time.values()))
        kept = {u: t for u, t in self._time.items() if u in present or t > self._now}
        self._time = kept if len(kept) <= KNOWN else {u: t for u, t in kept.items() if u in present}

    @property
    def names(self) -> int:
        """Number of known users."""
        return len(self._time)
