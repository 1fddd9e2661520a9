"""Measured cost of a step by its number of rows. Kernels process rows in groups, so the cost is a staircase,
not a line. Steps with prompts are left to the scheduler's linear model.
"""

from __future__ import annotations

from bisect import bisect_left
from statistics import median

SLOPE = 0.08  # assumed cost of an unmeasured row, as a share of the step without drafts
HIGH, LOW = 1.5, 0.5  # measured over expected time is clipped to this range: outliers come from other load
GROUP = 8  # rows that kernels process at once, at most
TRIALS = 3  # steps until a number of rows counts as measured, by their median: one may be an outlier
SHAPE, PACE = 0.05, 0.1  # learning rates of one number of rows, and of the common factor


class RowCost:
    """Seconds by number of rows, without the time to read the KV cache: a shape, which the model and its
    kernels determine, times a pace, which the clock and other processes change.
    """

    def __init__(self) -> None:
        self._pace = 1.0
        self._shape: dict[int, float] = {}
        self._seen: dict[int, int] = {}
        self._trials: dict[int, list[float]] = {}  # the first seconds of each number of rows

    def learn(self, rows: int, seconds: float) -> None:
        seen = self._seen[rows] = self._seen.get(rows, 0) + 1
        if seen <= TRIALS:
            trials = self._trials.setdefault(rows, [])
            trials.append(seconds / self._pace)
            self._shape[rows] = median(trials)
            return
        known = self._shape[rows]
        change = min(HIGH, max(LOW, seconds / (known * self._pace))) - 1
        self._shape[rows] = known * (1 + max(SHAPE, 1 / (1 + seen)) * change)
        self._pace *= 1 + PACE * change

    def measured(self, rows: int) -> bool:
        return self._seen.get(rows, 0) >= TRIALS

    def seconds(self, rows: int) -> float:
        """Seconds of a step with this many rows; 0 if nothing was measured. The estimate for a number that is
        not measured is optimistic, so that it is tried: between two measured ones of a group it is the lower
        of theirs, in a wider gap on a line, and beyond them on a line of small slope.
        """
        shape = self._shape
        if self.measured(rows) or not shape:
            return self._pace * shape.get(rows, 0.0)
        have = sorted(filter(self.measured, shape)) or [min(shape)]
        at = bisect_left(have, rows)
        if 0 < at < len(have):
            low, high = have[at - 1], have[at]
            if high - low <= GROUP:
                return self._pace * min(shape[low], shape[high])
            share = (rows - low) / (high - low)
            return self._pace * ((1 - share) * shape[low] + share * shape[high])
        near = have[0] if at == 0 else have[-1]
        base = shape[have[0]] / (1 + SLOPE * have[0])
        return self._pace * max(base, shape[near] + SLOPE * base * (rows - near))
