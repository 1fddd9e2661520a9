"""A request as it was made, and the job that it is while it waits and runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from satchel.runtime.arch import Scales
from satchel.runtime.host_sampling import HostSampling, host_sampling_of
from satchel.runtime.kv import Miss
from satchel.runtime.logits_options import NO_LOGITS_OPTIONS, LogitsOptions
from satchel.runtime.sampling import GREEDY, Sampling
from satchel.runtime.stats import Usage


@dataclass(frozen=True, slots=True)
class Request:
    """Tokens to continue. most: tokens to sample. ends: tokens that end the answer. given: tokens of the
    answer that were sampled before, by an engine that was lost; they count as sampled. surprises: as many, 0
    where the engine did not tell them.

    client: whose share of the machine it has, "" for the user's; clients share evenly whatever they send.
    priority: smaller is more urgent, among requests of one client. user: users of a client share what it has,
    by `weight`. salt: what is cached is seen by requests of the same salt only. deadline: clock time after
    which nobody wants the answer any more. draft: tokens that may be drafted at once; -1: as many as the
    engine would, 0: none. logits_options: constraint, logprobs and the like. scales: of adapters and control
    vectors; see runtime/extras.py.
    """

    ids: Sequence[int]
    most: int
    sampling: Sampling = GREEDY
    ends: frozenset[int] = frozenset()
    priority: int = 0
    client: str = ""
    user: str = ""
    weight: float = 1.0
    salt: str = ""
    deadline: float | None = None
    given: Sequence[int] = ()
    surprises: Sequence[float] = ()
    draft: int = -1
    logits_options: LogitsOptions = NO_LOGITS_OPTIONS
    scales: Scales = ()


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """A job that computes the first `shared` tokens of another job's prompt."""

    job: Job
    shared: int


@dataclass(slots=True, eq=False)
class Job:
    """ids: the prompt, then what was sampled. fed: how many of them the slot holds. arrived, started, first:
    clock times. again: of what is left, tokens that were fed before, with a wrong guess behind them. finish:
    "" while it is under way. waits_for_prefix: the job whose prefix this one waits to share. client: whose
    share of the machine it has.
    """

    request: Request
    arrived: float
    ids: list[int] = field(default_factory=list)
    slot: int = -1
    fed: int = 0
    again: int = 0
    cached: int = 0
    miss: Miss = Miss.COLD
    started: float = -1.0
    first: float = -1.0
    preempted: int = 0
    finish: str = ""
    waits_for_prefix: SharedPrefix | None = None
    used: Usage = field(default_factory=Usage)
    host_sampling: HostSampling | None = None
    client: str = ""

    def __post_init__(self) -> None:
        r = self.request
        self.client = r.client or r.user
        self.ids = [*r.ids, *r.given]
        self.host_sampling = host_sampling_of(r.sampling, r.logits_options, len(r.ids), r.ends)
        if self.host_sampling is not None:
            for token, surprise in zip(r.given, r.surprises, strict=True):
                self.host_sampling.took(token, surprise)

    @property
    def prompt(self) -> int:
        return len(self.request.ids)

    @property
    def salt(self) -> str:
        """Under which its blocks are kept."""
        return salted(self.request.salt, self.request.scales)

    @property
    def generated(self) -> int:
        return len(self.ids) - len(self.request.ids)

    @property
    def left(self) -> int:
        """Tokens that must be fed before the next one can be sampled."""
        return len(self.ids) - self.fed

    @property
    def decoding(self) -> bool:
        return self.generated > 0 and self.left == 1 + self.again


def salted(salt: str, scales: Scales) -> str:
    """The salt of what is computed with these scales: keys and values of one mix are no use to another."""
    return f"{salt}\0{scales}" if scales else salt
