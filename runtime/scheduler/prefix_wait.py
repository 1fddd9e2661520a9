"""Requests with a common prefix that arrive together: the later ones wait until the first has computed the
prefix, and then find it in the prefix tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from satchel.runtime.kv import common
from satchel.runtime.scheduler.job import Job, SharedPrefix


def waits_for_prefix(job: Job, running: Sequence[Job], block: int) -> bool:
    """Whether a running job is about to compute at least one block of this job's prompt."""
    ahead = job.waits_for_prefix
    if ahead is None or not computes(ahead, block):
        job.waits_for_prefix = ahead = next(
            (b for r in running if not r.decoding and computes(b := shared(job, r), block)), None
        )
    return ahead is not None


def computes(ahead: SharedPrefix, block: int) -> bool:
    """Whether blocks of the shared prefix are still to be computed by a running job."""
    other = ahead.job
    return other.slot >= 0 and not other.decoding and ahead.shared // block > other.fed // block


def shared(job: Job, other: Job) -> SharedPrefix:
    """The common prefix of the job's prompt and the other's, without the last token, which must be fed for
    its logits. Empty for another client's: a client does not wait for the speed of another.
    """
    if job.salt != other.salt or job.client != other.client:
        return SharedPrefix(other, 0)
    return SharedPrefix(other, common(job.ids[:-1], other.ids))
