"""Sequence: the state of a request while it waits and runs. Its rows in a step are a BatchEntry."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field

from satchel.runtime.engine.batch_entry import LAST, BatchEntry
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.host_sampling import HostSampling, host_sampling_of
from satchel.runtime.engine.tally import Usage
from satchel.runtime.kv import Miss
from satchel.runtime.layers.arch import AdapterScales


@dataclass(frozen=True, slots=True)
class PrefixWait:
    """A sequence waits for another, `seq`, to compute the first `shared` tokens of both."""

    seq: Sequence
    shared: int


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of one request. Times are the service's clock's; -1: not yet."""

    request: GenerateRequest
    arrived: float
    ids: list[int] = field(default_factory=list)  # the prompt, then the sampled tokens
    slot: int = -1  # -1: it waits for one
    num_computed_tokens: int = 0  # how many of ids have keys and values in the slot
    # Of the other ids, how many were computed before and lost when a draft was rejected.
    num_replayed_tokens: int = 0
    # How many of ids, after the computed ones, steps under way compute, where there are lanes.
    underway: int = 0
    cached: int = 0  # tokens of the prompt that the prefix cache had when it first began
    miss: Miss = Miss.COLD  # why it had no more
    placed: float = -1.0  # when it left a fleet's line
    started: float = -1.0
    first: float = -1.0  # when the first token was sampled
    preempted: int = 0  # how often it gave its slot back
    reached: int = 0  # tokens that it had computed when it did so last
    keeps_until: int = 0  # computed tokens before which it does not give its slot to another client
    finish: str = ""  # how it ended; "": it has not
    waits_for_prefix: PrefixWait | None = None
    used: Usage = field(default_factory=Usage)
    host_sampling: HostSampling | None = None  # None: the device samples alone
    client: str = ""  # whose share of the machine it uses
    prompt: int = 0  # tokens of the prompt
    full: int = 1 << 62  # how many of ids it ends with at the latest
    on_device: bool = False  # the last of ids was sampled in its slot, so LAST stands for it
    account: tuple[str, str, float] = ("", "", 1.0)  # client, user and weight, by which it is charged
    _next: BatchEntry | None = None  # its rows in each step that decodes it in its slot

    def __post_init__(self) -> None:
        r = self.request
        self.client, self.prompt = r.client or r.user, len(r.ids)
        self.account = self.client, r.user, r.weight
        self.ids = [*r.ids, *r.given]
        self.host_sampling = host_sampling_of(r)
        if self.host_sampling is not None:
            for token, bits in zip(r.given, r.nll_bits, strict=True):
                self.host_sampling.took(token, bits)

    def displace(self) -> None:
        """Forgets the slot and what was computed there, for an engine that knows nothing of it."""
        self.slot, self.num_computed_tokens, self.num_replayed_tokens, self.on_device = -1, 0, 0, False
        self.waits_for_prefix, self._next, self.finish = None, None, ""
        self.underway = 0
        self.reached = self.keeps_until = 0
        self.used.restarted += 1

    @property
    def salt(self) -> str:
        """The key under which its blocks are cached."""
        return salted(self.request.salt, self.request.adapter_scales)

    @property
    def generated(self) -> int:
        return len(self.ids) - self.prompt

    @property
    def runs_alone(self) -> bool:
        """Whether its steps may have no other sequence."""
        return self.generated < self.request.alone_until

    @property
    def remaining(self) -> int:
        """Tokens that must be computed before the next one can be sampled, without those under way."""
        return len(self.ids) - self.num_computed_tokens - self.underway

    @property
    def decoding(self) -> bool:
        left = len(self.ids) - self.num_computed_tokens - self.num_replayed_tokens
        return left == 1 and len(self.ids) > self.prompt

    def entry(self, num_tokens: int, draft_tokens: abc.Sequence[int] = ()) -> BatchEntry:
        """Its rows in a step that computes `num_tokens` more of its tokens, then draft tokens. Where none of
        its tokens is left, the step samples one after the last of them and one after each draft token.
        """
        start = self.num_computed_tokens + self.underway
        ids = (*self.ids[start : start + num_tokens], *draft_tokens)
        if num_tokens < self.remaining:
            return BatchEntry(self.slot, ids, adapter_scales=self.request.adapter_scales)
        return self._sampled(ids, 1 + len(draft_tokens))

    def next_entry(self) -> BatchEntry:
        """Its rows in a step that computes what its slot sampled last: the last of its tokens where it is
        `on_device`, or the token that a step under way samples. As long as it has its slot, this is one
        object, by which the engine knows that its rows are those of the step before.
        """
        if self._next is None or self._next.slot != self.slot:
            self._next = self._sampled((LAST,), 1, decodes=True)
        return self._next

    def _sampled(self, ids: abc.Sequence[int], samples: int, *, decodes: bool = False) -> BatchEntry:
        r, host = self.request, self.host_sampling
        return BatchEntry(
            self.slot,
            ids,
            r.sampling,
            samples,
            host,
            self.ids,
            r.adapter_scales,
            speculated=samples > 1,
            decodes=decodes,
        )


# A step: the rows of each scheduled sequence, in the order of the batch.
Batch = dict[Sequence, BatchEntry]


def salted(salt: str, adapter_scales: AdapterScales) -> str:
    """The salt of blocks computed with these scales: keys and values depend on the adapters."""
    return f"{salt}\0{adapter_scales}" if adapter_scales else salt
