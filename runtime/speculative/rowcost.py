"""Measured cost of a step by its number of rows. Kernels process rows in groups, so the cost is a staircase,
not a line. Steps with prompts are left to the scheduler's linear model.
"""

from __future__ import annotations

from bisect import bisect_left

SLOPE = 0.08  # assumed cost of an unmeasured row, as a share of the step without drafts
HIGH, LOW = 1.5, 0.5  # measured over expected time is clipped to this range: outliers come from other load
SHAPE, PACE = 0.05, 0.1  # learning rates of one number of rows, and of the common factor


class RowCost:
    """Seconds by number of rows, without the time to read the KV cache: a shape, which the model and its
    kernels determine, times a pace, which the clock and other processes change.
    """

    def __init__(self) -> None:
        self._pace = 1.0
        self._shape: dict[int, float] = {}
        self._seen: dict[int, int] = {}

    def learn(self, rows: int, seconds: float) -> None:
        known = self._shape.get(rows)
        estimate = known * self._pace if known is not None else self.seconds(rows) or seconds
        change = min(HIGH, max(LOW, seconds / estimate)) - 1
        seen = self._seen[rows] = self._seen.get(rows, 0) + 1
        if known is None:
            self._shape[rows] = estimate * (1 + change) / self._pace
            return
        self._shape[rows] = known * (1 + max(SHAPE, 1 / (1 + seen)) * change)
        self._pace *= 1 + PACE * change

    def measured(self, rows: int) -> bool:
        return rows in self._shape

    def seconds(self, rows: int) -> float:
        """Seconds of a step with this many rows: measured, or interpolated; beyond the measured range,
        extrapolated with an optimistic slope, so that it is tried. 0 if nothing was measured.
        """
        shape = self._shape
        if rows in shape or not shape:
            return self._pace * shape.get(rows, 0.0)
        have = sorted(shape)
        at = bisect_left(have, rows)
        if 0 < at < len(have):
            low, high = have[at - 1], have[at]
            share = (rows - low) / (high - low)
            return self._pace * ((1 - share) * shape[low] + share * shape[high])
        near = have[0] if at == 0 else have[-1]
        base = shape[have[0]] / (1 + SLOPE * have[0])
        return self._pace * max(base, shape[near] + SLOPE * base * (rows - near))
