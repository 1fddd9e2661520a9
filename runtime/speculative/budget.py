"""What may be spent on finding out whether drafts that look bad have become good: a share of the time."""

from __future__ import annotations

SHARE = 0.01  # of all steps
GRANT = 6.0  # steps that may be spent before anything was earned


class TrialBudget:
    """Seconds that may be lost."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._granted = False

    def earn(self, seconds: float) -> None:
        """A step of so many seconds was made."""
        if not self._granted:
            self._granted, self.seconds = True, GRANT * seconds
        self.seconds += SHARE * seconds

    def spend(self, seconds: float) -> bool:
        """Takes so much where there is so much."""
        if seconds > self.seconds:
            return False
        self.seconds -= seconds
        return True
