"""Whether a Ray cluster has room for engines now. It is asked by what is connected to the cluster.

Invariant: nothing stays reserved.
"""

from __future__ import annotations

import time
from typing import Any

from satchel.runtime.ray.orders import EngineOrder


def has_room(order: EngineOrder, count: int, seconds: float) -> bool:
    """Whether so many of these engines find their bundles within so many seconds."""
    from ray.util import placement_group, remove_placement_group

    end, groups = time.monotonic() + seconds, list[Any]()
    try:
        groups += [placement_group(order.bundles, strategy=order.strategy) for _ in range(count)]
        return all(group.wait(max(0.1, end - time.monotonic())) for group in groups)
    finally:
        for group in groups:
            remove_placement_group(group)
