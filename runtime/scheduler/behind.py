"""Requests that begin alike and come together: the later ones wait until the first has computed what they
share, for then they find it in the prefix tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from satchel.runtime.kv import common
from satchel.runtime.scheduler.job import Behind, Job


def is_behind(job: Job, running: Sequence[Job], block: int) -> bool:
    """Whether a running job is about to compute at least one block of tokens with which this one begins."""
    ahead = job.behind
    if ahead is None or not computes(ahead, block):
        job.behind = ahead = next(
            (b for r in running if not r.decoding and computes(b := shared(job, r), block)), None
        )
    return ahead is not None


def computes(ahead: Behind, block: int) -> bool:
    """Whether blocks of the shared part are still missing, and on their way."""
    other = ahead.job
    return other.slot >= 0 and not other.decoding and ahead.shared // block > other.fed // block


def shared(job: Job, other: Job) -> Behind:
    """How much of the job's prompt the other has, the last token aside, which must be fed for its logits.
    None of another client's: how soon that one gets on is not this client's to wait for.
    """
    if job.salt != other.salt or job.client != other.client:
        return Behind(other, 0)
    return Behind(other, common(job.ids[:-1], other.ids))
