"""What a step costs by its number of rows, as measured: kernels take rows in groups, so the cost is a
staircase that no straight line follows. Steps with prompts are left to the scheduler's fitted line.
"""

from __future__ import annotations

from bisect import bisect_left

SLOPE = 0.08  # of the step without drafts that a row is taken to cost where nothing is measured
HIGH, LOW = 1.5, 0.5  # a time further off than this is taken to be so far off: something else ran
SHAPE, PACE = 0.05, 0.1  # shares of a difference that one number of rows, and all of them, are taken to have


class RowCost:
    """Seconds by rows, less what reading the context takes: a shape that the model and its kernels have,
    times a pace that the clock and other processes change.
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
        """Measured; between measured numbers of rows on a line, beyond them with a slope that is hopeful
        enough to be tried. 0 where nothing was measured.
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
