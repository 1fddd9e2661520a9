"""How many replicas a fleet should have, by the predicted wait: the seconds before a new prompt of 512 tokens
would be begun (runtime/fleet/router.py: wait), as each member reports it.

Invariant: a pure function of the reports, a clock that the caller reads, and the last decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite
from typing import NamedTuple

from satchel.errors import RequestError

CALM = 0.25  # below this share of the aim a replica is taken away


class Limits(NamedTuple):
    """What a fleet may have."""

    least: int = 1  # replicas
    most: int = 8
    aim: float = 0.5  # seconds that a new prompt may wait, on average over the members
    up: float = 15.0  # seconds after a change before replicas are added
    down: float = 120.0  # seconds after a change before one is taken away


class Decision(NamedTuple):
    """How many replicas are wanted, and since when."""

    replicas: int
    at: float  # time of the last change


def check(limits: Limits) -> None:
    """Raises RequestError where the limits contradict themselves."""
    if not 1 <= limits.least <= limits.most:
        raise RequestError(
            f"replicas: expected 1 <= least <= most, got least = {limits.least}, most = {limits.most}"
        )
    if not (isfinite(limits.aim) and limits.aim > 0):
        raise RequestError(f"replicas.wait: expected seconds above 0, got {limits.aim}")
    if min(limits.up, limits.down) < 0:
        raise RequestError(f"replicas: expected cooldowns of at least 0 s, got {limits.up} and {limits.down}")


def wanted(waits: Sequence[float], now: float, last: Decision, limits: Limits) -> Decision:
    """The replicas wanted now.

    waits: predicted wait of each member that serves, in seconds. Replicas that were asked for and do not
    serve yet are in `last.replicas` and not in `waits`.

    Above the aim: n * mean(wait) / aim, rounded up, but at most twice as many as serve: a queue says that
    replicas are lacking, not how many, for a wait grows with the time for which they were lacking. Below a
    quarter of the aim: one fewer. A change is followed by none for `up` or `down` seconds, so that what was
    added shows in the reports before more is.
    """
    serving = len(waits)
    replicas = last.replicas
    if not serving:
        replicas = max(replicas, limits.least)
    else:
        mean = sum(waits) / serving
        if mean > limits.aim and now - last.at >= limits.up:
            replicas = max(replicas, min(ceil(serving * mean / limits.aim), 2 * serving))
        elif mean < CALM * limits.aim and now - last.at >= limits.down:
            replicas -= 1
    replicas = min(max(replicas, limits.least), limits.most)
    return last if replicas == last.replicas else Decision(replicas, now)
