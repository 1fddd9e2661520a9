"""The order in which requests begin: between clients by what each has and had, within a client by priority. A
request that waits becomes more urgent by one level in every `seconds`, so none of a client's starves.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor

from satchel.runtime.scheduler.job import Job
from satchel.runtime.scheduler.shares import Shares

Key = tuple[float, float, float, float, float, float]


def level(job: Job, now: float, seconds: float) -> int:
    """The job's priority less what it gained by waiting."""
    return job.request.priority - waited(job, now, seconds)


def waited(job: Job, now: float, seconds: float) -> int:
    """Levels that the job gained by waiting."""
    return floor(max(0.0, now - job.arrived) / seconds)


def order(
    job: Job, now: float, shares: Shares, slots: Mapping[str, int], seconds: float, left: float = 0.0
) -> Key:
    """Smaller goes first. slots: of each client. left: tokens until the job ends, where the shortest are to
    go first, whoever's they are; that order is the operator's wish, and no client's priority is above it.
    """
    had, user = shares.had(job.client), shares.user_had(job)
    if left:
        return -waited(job, now, seconds), left, had, job.request.priority, user, job.arrived
    return slots[job.client] / job.request.weight, had, level(job, now, seconds), 0.0, user, job.arrived
