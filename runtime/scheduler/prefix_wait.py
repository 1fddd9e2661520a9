"""Sequences that share a prefix and arrive together: the later ones wait until the first has computed the
prefix, and then find it in the prefix tree.
"""

from __future__ import annotations

from collections import abc

from satchel.runtime.kv import common
from satchel.runtime.scheduler.sequence import PrefixWait, Sequence


def waits_for_prefix(seq: Sequence, running: abc.Sequence[Sequence], block: int) -> bool:
    """Whether a running sequence is about to compute at least one block of this one's prefix."""
    wait = seq.waits_for_prefix
    if wait is None or not computes(wait, block):
        prefilling = (r for r in running if not r.decoding)
        wait = next((w for r in prefilling if computes(w := shared(seq, r), block)), None)
        seq.waits_for_prefix = wait
    return wait is not None


def computes(wait: PrefixWait, block: int) -> bool:
    """Whether blocks of the shared prefix are still missing and being computed."""
    other = wait.seq
    computed = other.num_computed_tokens // block
    return other.slot >= 0 and not other.decoding and wait.shared // block > computed


def shared(seq: Sequence, other: Sequence) -> PrefixWait:
    """How much of the sequence's prompt the other one has, without the last token, which is computed for its
    logits. Sequences of different clients share nothing here, so that neither waits for the other's progress.
    """
    if seq.salt != other.salt or seq.client != other.client:
        return PrefixWait(other, 0)
    return PrefixWait(other, common(seq.ids[:-1], other.ids))
