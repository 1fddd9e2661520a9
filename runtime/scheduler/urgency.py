"""Priorities with ageing: a request that waits becomes more urgent by one level in every `seconds`, so none
starves.
"""

from __future__ import annotations

from math import floor

from satchel.runtime.scheduler.fair import Fair
from satchel.runtime.scheduler.job import Job

Key = tuple[int, float, float, float]


def level(job: Job, now: float, seconds: float) -> int:
    """The job's priority less what it gained by waiting."""
    return job.request.priority - floor(max(0.0, now - job.arrived) / seconds)


def order(job: Job, now: float, fair: Fair, seconds: float, left: float = 0.0) -> Key:
    """Smaller goes first: by level, then what has least left to do, where that is told, then the user who has
    had least, then first come, first served.
    """
    return level(job, now, seconds), left, fair.behind(job.request.user), job.arrived
