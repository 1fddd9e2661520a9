"""The line of a fleet: requests that no member has yet, in the order in which members get them.

Members get a request late, when one of them has room, so that the order is the fleet's: among clients by what
each had over its weight, whichever members computed it; within a client by priority and age. A client with
less than its part of the slots does not wait for room: its request goes to a member at once, whose scheduler
makes room for it (runtime/scheduler/shares.py). Requests that lost their member go first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from satchel.runtime.engine.request_handle import RequestHandle
from satchel.runtime.scheduler import SchedulerLimits
from satchel.runtime.scheduler.fair import KNOWN, Fair
from satchel.runtime.scheduler.lengths import Lengths
from satchel.runtime.scheduler.urgency import level, waited
from satchel.runtime.worker.replay import LiveRequest


class Line:
    """Requests that wait for a member. Not thread-safe."""

    def __init__(self, limits: SchedulerLimits, lengths: Lengths) -> None:
        self._limits, self._lengths, self._fair = limits, lengths, Fair()
        self._waiting: dict[str, dict[RequestHandle, LiveRequest]] = {}  # by client, in order of arrival
        self._weights: dict[str, float] = {}
        self.placed = Counter[str]()  # requests that members have, by client

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[LiveRequest]:
        return (live for own in list(self._waiting.values()) for live in list(own.values()))

    def add(self, live: LiveRequest) -> None:
        seq = live.handle.seq
        if self._fair.names >= KNOWN:
            self._fair.forget({*self._waiting, *+self.placed})
        if seq.client not in self._waiting and not self.placed[seq.client]:
            self._fair.arrive(seq.client)
        self._weights[seq.client] = seq.request.weight
        self._waiting.setdefault(seq.client, {})[live.handle] = live

    def remove(self, handle: RequestHandle) -> LiveRequest | None:
        """Takes a request out; None: it is not here."""
        own = self._waiting.get(handle.seq.client, {})
        live = own.pop(handle, None)
        if live is not None and not own:
            del self._waiting[handle.seq.client]
            self._forget(handle.seq.client)
        return live

    def next(self, room: bool, slots: int, now: float) -> LiveRequest | None:
        """The request that a member gets next. room: some member has room. slots: of all members."""
        begun = [live for live in self if live.begun]
        if begun:
            return min(begun, key=lambda live: live.handle.seq.arrived)
        for client in sorted(self._waiting, key=self._fair.virtual_time):
            if room or self.placed[client] < self._part(client, slots):
                return min(self._waiting[client].values(), key=lambda live: self._key(live, now))
        return None

    def place(self, live: LiveRequest, seconds: float) -> None:
        """A member gets the request, which is predicted to take so many seconds of it."""
        client = live.handle.seq.client
        self.remove(live.handle)
        self.placed[client] += 1
        if not live.begun:  # else it was charged when it got its first member
            self._fair.charge(client, seconds, live.handle.seq.request.weight)

    def leave(self, live: LiveRequest) -> None:
        """A member has the request no longer."""
        client = live.handle.seq.client
        self.placed[client] -= 1
        self._forget(client)

    def _forget(self, client: str) -> None:
        if self.placed[client] <= 0 and client not in self._waiting:
            del self.placed[client]
            self._weights.pop(client, None)

    def _part(self, client: str, slots: int) -> float:
        """The client's part of all slots, by weight among the clients with requests; 1 at least."""
        return max(1.0, slots * self._weights[client] / sum(self._weights.values()))

    def _key(self, live: LiveRequest, now: float) -> tuple[float, float, float]:
        seq = live.handle.seq
        if self._limits.shortest:
            return -waited(seq, now, self._limits.ageing), self._lengths.remaining(seq), seq.arrived
        return level(seq, now, self._limits.ageing), 0.0, seq.arrived
