"""Which requests may have draft tokens, and how many. Drafts are the first to go when others need
the room.
"""

from __future__ import annotations

from satchel.runtime.kv import Pages
from satchel.runtime.scheduler import Batch, Scheduler, Sequence


def rows_left(batch: Batch, scheduler: Scheduler) -> int:
    """Rows of the step that are left for drafts. None beside a prompt, whose client waits for the first
    token, and none while a request waits for memory. A request that waits for a slot gets it sooner if the
    others decode faster.
    """
    if scheduler.held_up or not all(seq.decoding for seq in batch):
        return 0
    return scheduler.engine.batch - sum(len(entry.ids) for entry in batch.values())


def may_draft(seq: Sequence) -> bool:
    """Whether draft tokens can be verified for the sequence: it decodes, drafts are on, and its host-side
    sampling state does not change from token to token.
    """
    host = seq.host_sampling
    return seq.decoding and seq.request.draft != 0 and (host is None or host.fixed)


def max_draft_tokens(seq: Sequence, pages: Pages, most: int) -> int:
    """Most draft tokens for the sequence within the limits of the answer, the context and the pool."""
    wanted = seq.request.draft if seq.request.draft >= 0 else most
    cache, length = pages.cache, len(seq.ids)
    fits = min(cache.context, cache.capacity) - length
    return max(0, min(wanted, most, fits, seq.request.max_tokens - seq.generated - 1))


def take_blocks(seq: Sequence, pages: Pages, count: int) -> int:
    """Reserves blocks for `count` draft tokens, or for as many as free blocks allow; gives that number."""
    missing = pages.missing(seq.slot, len(seq.ids) + count)
    if missing and missing > pages.free_blocks:
        count = max(0, len(pages.held(seq.slot)) * pages.cache.block - len(seq.ids))
    pages.reserve(seq.slot, len(seq.ids) + count)
    return count
