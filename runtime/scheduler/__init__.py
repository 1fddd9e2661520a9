"""Which requests run in the next step, and how much of each: continuous batching. Each policy is a small
file.
"""

from satchel.runtime.scheduler.job import Job, Request
from satchel.runtime.scheduler.limits import Limits
from satchel.runtime.scheduler.scheduler import Scheduler, Work

__all__ = ["Job", "Limits", "Request", "Scheduler", "Work"]
