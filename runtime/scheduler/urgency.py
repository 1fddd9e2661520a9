"""The order in which requests begin: between clients by what each has and had, within a client by priority. A
request that waits becomes more urgent by one level in every `seconds`, so none of a client's starves.
"""

from __future__ import annotations

from collections import abc
from math import floor

from satchel.runtime.scheduler.sequence import Sequence
from satchel.runtime.scheduler.shares import Shares

Key = tuple[float, float, float, float, float, float]


def level(seq: Sequence, now: float, seconds: float) -> int:
    """The sequence's priority less what it gained by waiting."""
    return seq.request.priority - waited(seq, now, seconds)


def waited(seq: Sequence, now: float, seconds: float) -> int:
    """Levels that the sequence gained by waiting."""
    return floor(max(0.0, now - seq.arrived) / seconds)


def order(
    seq: Sequence, now: float, shares: Shares, slots: abc.Mapping[str, int], seconds: float, left: float = 0.0
) -> Key:
    """Smaller goes first. slots: of each client. left: tokens until the sequence ends, where the shortest are
    to go first, of whatever client; the operator chose that order, and no client's priority is above it.
    """
    had, user = shares.had(seq.client), shares.user_had(seq)
    if left:
        return -waited(seq, now, seconds), left, had, seq.request.priority, user, seq.arrived
    held = slots[seq.client] / shares.weight(seq.client)
    return held, had, level(seq, now, seconds), 0.0, user, seq.arrived
