"""BatchEntry: the rows of one slot in one step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from satchel.runtime.engine.host_sampling import HostSampling
from satchel.runtime.layers.arch import AdapterScales
from satchel.runtime.sampling import Sampling

LAST = -1  # a token id that stands for "what this slot sampled last"


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """Tokens that a step computes in one slot, and how it samples tokens after them."""

    slot: int
    ids: Sequence[int]  # for the positions that follow those in the slot
    sampling: Sampling | None = None  # None: no token is sampled
    samples: int = 1  # after so many of the last ids a token is sampled; all but the first are draft tokens
    host_sampling: HostSampling | None = None  # state of host-side sampling; None: the device samples alone
    past: Sequence[int] = ()  # what host_sampling reads: all tokens up to the one to sample
    adapter_scales: AdapterScales = ()  # of adapters and control vectors; see runtime/adapters/adapters.py
    segment_ids: Sequence[int] = ()  # of each token, for encoders with token types; (): all 0
    speculated: bool = False  # rewind() may take back draft tokens of this step, or of later ones
    decodes: bool = False  # it computes LAST alone, and samples one token

    @property
    def rows(self) -> int:
        """Number of tokens that are sampled."""
        return self.samples if self.sampling is not None else 0

    @property
    def num_tokens(self) -> int:
        """Number of ids that are no draft tokens."""
        return len(self.ids) - self.samples + 1

    @property
    def draft_tokens(self) -> Sequence[int]:
        return self.ids[self.num_tokens :]


def host_sampled(entries: Iterable[BatchEntry]) -> bool:
    """Whether any of the entries needs the host to sample."""
    return any(e.host_sampling is not None for e in entries)
