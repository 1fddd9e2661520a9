"""StepRows: the rows of a step as lists over its entries, made once for as long as the entries stay the same
objects. While sequences decode they do, so that a step has nothing to fill in but positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import is_

import numpy as np

from satchel.runtime.engine.batch_entry import BatchEntry, host_sampled
from satchel.runtime.graph import Array
from satchel.runtime.sampling import Sampling


@dataclass(frozen=True, slots=True, eq=False)
class StepRows:
    """What of a step follows from its entries alone."""

    entries: tuple[BatchEntry, ...]
    slots: list[int]  # of each entry
    counts: list[int]  # tokens of each entry
    ids: Array  # of each token
    token_slots: Array  # of each token
    sampled: Array  # tokens after which one is sampled
    samplings: list[Sampling]  # of each of these
    single: bool  # every entry has one token
    host_sampled: bool
    speculated: bool
    adapted: bool
    mark: object  # stands for these rows where the entries, with all that they hold, should not be kept

    @classmethod
    def of(cls, entries: Sequence[BatchEntry]) -> StepRows:
        slots, counts = [e.slot for e in entries], [len(e.ids) for e in entries]
        ends = list(accumulate(counts))
        sampled = [row for e, end in zip(entries, ends, strict=True) for row in range(end - e.rows, end)]
        return cls(
            tuple(entries),
            slots,
            counts,
            np.array([i for e in entries for i in e.ids], np.int32),
            np.repeat(np.array(slots, np.int32), counts),
            np.array(sampled, np.int32),
            [e.sampling for e in entries if e.sampling is not None for _ in range(e.samples)],
            len(ends) == (ends[-1] if ends else 0),
            host_sampled(entries),
            any(e.speculated for e in entries),
            any(e.adapter_scales for e in entries),
            object(),
        )

    @property
    def total(self) -> int:
        """Tokens of the step."""
        return len(self.ids)

    def are(self, entries: Sequence[BatchEntry]) -> bool:
        """Whether these are the same entries."""
        return len(entries) == len(self.entries) and all(map(is_, entries, self.entries))

    def ends(self, starts: Sequence[int]) -> list[int]:
        """The length of each entry's slot after the step. starts: before it."""
        if self.single:
            return [start + 1 for start in starts]
        return [start + n for start, n in zip(starts, self.counts, strict=True)]

    def positions(self, starts: Sequence[int]) -> Sequence[int]:
        """The position of each token."""
        if self.single:
            return starts
        return [p for start, n in zip(starts, self.counts, strict=True) for p in range(start, start + n)]

    def parts(self) -> Iterator[tuple[BatchEntry, slice]]:
        """Each entry with the range of its tokens."""
        at = 0
        for entry, n in zip(self.entries, self.counts, strict=True):
            yield entry, slice(at, at + n)
            at += n
