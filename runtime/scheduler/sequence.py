"""A request as its client made it, and the sequence that the engine makes of it while it waits and runs."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field

from satchel.runtime.engine.host_sampling import HostSampling, host_sampling_of
from satchel.runtime.engine.logits_options import NO_LOGITS_OPTIONS, LogitsOptions
from satchel.runtime.engine.stats import Usage
from satchel.runtime.kv import Miss
from satchel.runtime.layers.arch import AdapterScales
from satchel.runtime.sampling import GREEDY, Sampling


@dataclass(frozen=True, slots=True)
class Request:
    """Token ids to continue. max_tokens: how many tokens to sample at most. stop_ids: tokens that end the
    answer. given: tokens of the answer that an engine sampled before it was lost; they count as sampled.
    nll_bits: one for each of them, 0 where that engine reported none.

    client: whose share of the machine the request uses, "" for the user's; clients share by `weight`,
    whatever they send: a client has that of its newest request. priority: smaller is more urgent, among
    requests of one client. user: users of a client share what it has, by `weight`. salt: cached blocks are
    shared among requests of one salt only. deadline: clock time after which the client no longer waits.
    draft: tokens that may be drafted at once; -1: as many as the engine would, 0: none. logits_options:
    constraint, logprobs and the like. adapter_scales: of adapters and control vectors; see
    runtime/adapters/adapters.py.
    """

    ids: abc.Sequence[int]
    max_tokens: int
    sampling: Sampling = GREEDY
    stop_ids: frozenset[int] = frozenset()
    priority: int = 0
    client: str = ""
    user: str = ""
    weight: float = 1.0
    salt: str = ""
    deadline: float | None = None
    given: abc.Sequence[int] = ()
    nll_bits: abc.Sequence[float] = ()
    draft: int = -1
    logits_options: LogitsOptions = NO_LOGITS_OPTIONS
    adapter_scales: AdapterScales = ()


@dataclass(frozen=True, slots=True)
class PrefixWait:
    """`seq` computes the first `shared` tokens of another sequence's prompt, which waits for them."""

    seq: Sequence
    shared: int


@dataclass(slots=True, eq=False)
class Sequence:
    """ids: the prompt, then the sampled tokens. num_computed_tokens: how many of ids have keys and values in
    the slot; cached: how many of these came from the prefix cache. num_replayed_tokens: of the remaining
    ones, those that were computed before and went with the state of a rejected draft. arrived, started,
    first: clock times. finish: "" while the sequence is under way. client: whose share of the machine it
    uses. waits_for_prefix: the sequence whose prefix it waits to share.
    """

    request: Request
    arrived: float
    ids: list[int] = field(default_factory=list)
    slot: int = -1
    num_computed_tokens: int = 0
    num_replayed_tokens: int = 0
    cached: int = 0
    miss: Miss = Miss.COLD
    started: float = -1.0
    first: float = -1.0
    preempted: int = 0
    finish: str = ""
    waits_for_prefix: PrefixWait | None = None
    used: Usage = field(default_factory=Usage)
    host_sampling: HostSampling | None = None
    client: str = ""

    def __post_init__(self) -> None:
        r = self.request
        self.client = r.client or r.user
        self.ids = [*r.ids, *r.given]
        self.host_sampling = host_sampling_of(r.sampling, r.logits_options, len(r.ids), r.stop_ids)
        if self.host_sampling is not None:
            for token, bits in zip(r.given, r.nll_bits, strict=True):
                self.host_sampling.took(token, bits)

    @property
    def prompt(self) -> int:
        return len(self.request.ids)

    @property
    def salt(self) -> str:
        """The key under which its blocks are cached."""
        return salted(self.request.salt, self.request.adapter_scales)

    @property
    def generated(self) -> int:
        return len(self.ids) - len(self.request.ids)

    @property
    def remaining(self) -> int:
        """Tokens that must be computed before the next one can be sampled."""
        return len(self.ids) - self.num_computed_tokens

    @property
    def decoding(self) -> bool:
        return self.generated > 0 and self.remaining == 1 + self.num_replayed_tokens


def salted(salt: str, adapter_scales: AdapterScales) -> str:
    """The salt of blocks computed with these scales: keys and values depend on the adapters."""
    return f"{salt}\0{adapter_scales}" if adapter_scales else salt
