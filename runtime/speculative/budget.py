"""Budget for trying drafts that do not look worth it, to find out whether they have become so: a share of the
time.
"""

from __future__ import annotations

SHARE = 0.01  # of the time of all steps
GRANT = 6.0  # initial budget, in steps


class TrialBudget:
    """Seconds that trials may lose."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._granted = False

    def earn(self, seconds: float) -> None:
        """Adds the share of a step that took this long."""
        if not self._granted:
            self._granted, self.seconds = True, GRANT * seconds
        self.seconds += SHARE * seconds

    def spend(self, seconds: float) -> bool:
        """Takes this much if the budget has it; False if not."""
        if seconds > self.seconds:
            return False
        self.seconds -= seconds
        return True
