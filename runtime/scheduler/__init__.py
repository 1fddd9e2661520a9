"""Which requests run in the next step, and how much of each: continuous batching. Each policy is a small
file.
"""

from satchel.runtime.scheduler.scheduler import Scheduler
from satchel.runtime.scheduler.sequence import Batch, Sequence
from satchel.runtime.scheduler_limits import SchedulerLimits

__all__ = ["Batch", "Scheduler", "SchedulerLimits", "Sequence"]
