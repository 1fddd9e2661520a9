"""The order in which requests begin: among clients by the slots that each has and the time that it had;
within a client by priority. A waiting request gains a level of urgency every `seconds`, so that none starves.
"""

from __future__ import annotations

from collections import abc
from math import floor

from satchel.runtime.scheduler.sequence import Sequence
from satchel.runtime.scheduler.shares import Shares

Key = tuple[float, float, float, float, float, float]


def level(seq: Sequence, now: float, seconds: float) -> int:
    """The sequence's priority after waiting: smaller is more urgent."""
    return seq.request.priority - waited(seq, now, seconds)


def waited(seq: Sequence, now: float, seconds: float) -> int:
    """Levels of urgency that the sequence gained by waiting."""
    return floor(max(0.0, now - seq.arrived) / seconds)


def order(
    seq: Sequence, now: float, shares: Shares, slots: abc.Mapping[str, int], seconds: float, left: float = 0.0
) -> Key:
    """Sort key: smaller goes first.

    slots: of each client.
    left: predicted tokens until the sequence ends, if the operator chose shortest-first (0: not). That order
    holds among all clients, before any priority.
    """
    had, user = shares.had(seq.client), shares.user_had(seq)
    if left:
        return -waited(seq, now, seconds), left, had, seq.request.priority, user, seq.arrived
    held = slots[seq.client] / shares.weight(seq.client)
    return held, had, level(seq, now, seconds), 0.0, user, seq.arrived
