"""Which requests may have drafts, and how many: drafts are the first to go where others need the room."""

from __future__ import annotations

from collections.abc import Sequence

from satchel.runtime.kv import Pages
from satchel.runtime.scheduler import Job, Scheduler, Work


def rows_left(work: Sequence[Work], scheduler: Scheduler) -> int:
    """Rows that the step has left for drafts: none beside a prompt, for whose first token a client waits, and
    none while a request waits for room in memory. One that waits for a slot gets it the sooner, the more
    tokens the others make.
    """
    if scheduler.held_up or not all(w.job.decoding for w in work):
        return 0
    return scheduler.engine.batch - sum(w.count for w in work)


def may_draft(job: Job) -> bool:
    """Whether guesses can be verified for the job: it decodes, wants them, and what the host does for it does
    not change from token to token.
    """
    detail = job.detail
    return job.decoding and job.request.draft != 0 and (detail is None or detail.fixed)


def most_for(job: Job, pages: Pages, most: int) -> int:
    """Tokens that may be drafted for the job: no more than the answer, the context and the pool can take."""
    wanted = job.request.draft if job.request.draft >= 0 else most
    cache, length = pages.cache, len(job.ids)
    fits = min(cache.context, cache.pool * cache.block) - length
    return max(0, min(wanted, most, fits, job.request.most - job.generated - 1))


def take_blocks(job: Job, pages: Pages, count: int) -> int:
    """Reserves blocks for so many drafted tokens, or for as many as there are free blocks for; gives the
    number.
    """
    missing = pages.missing(job.slot, len(job.ids) + count)
    if missing and missing > pages.free_blocks:
        count = max(0, len(pages.held(job.slot)) * pages.cache.block - len(job.ids))
    pages.reserve(job.slot, len(job.ids) + count)
    return count
