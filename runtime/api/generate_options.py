"""Options of one request: GenerateOptions defines them, GenerateKwargs types the same names for `**kwargs`. A
new option is added here and nowhere else.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from satchel.errors import RequestError
from satchel.runtime.api.overflow import check_policy
from satchel.runtime.engine.constraint import Constraint
from satchel.runtime.engine.logits_options import LogitsProcessor
from satchel.runtime.grammar.spec import Spec
from satchel.runtime.sampling import Sampling

PromptProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """Options of one request: how its answer is sampled, when it ends, and how it is scheduled.

    max_tokens: most tokens of the answer; -1: until an end token or a full context. sampling None: the
    defaults; `checked` draws a seed where it has none. stop: texts that end the answer, which does not hold
    them unless include_stop_str_in_output. stop_token_ids: tokens that end it besides the model's own end
    tokens, which ignore_eos forbids. progress(tokens computed, tokens to compute) is called during the
    prefill.

    on_overflow, when prompt and answer exceed the context: "error" refuses the prompt or ends the answer;
    "truncate-middle" drops tokens from the middle of the prompt; "shift" drops the oldest tokens and goes on.
    priority: smaller is more urgent, among requests of one client. client: the name under which fair
    scheduling accounts the request; "" takes `user`. user: one of the client's users; weight: its share of
    what the client gets. salt: only requests with the same salt share cached prefixes. timeout: seconds after
    which the answer ends; 0: none. draft: most draft tokens of speculative decoding; -1: as the model was
    loaded, 0: none.

    logprobs: -1: none; 0: of each token of the answer; k: of the k likeliest tokens beside it too.
    constraint: limits the answer token by token; grammar: its description, which the engine compiles and
    which the finished answer is checked against. logits_processors: functions of (tokens so far, logits) that
    change the logits.

    adapters, control_vectors: scales by name of those that were loaded; None: their scales as loaded,
    otherwise those that are not named are off.
    """

    max_tokens: int = -1
    sampling: Sampling | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    progress: PromptProgress | None = None
    on_overflow: str = "error"
    priority: int = 0
    client: str = ""
    user: str = ""
    weight: float = 1.0
    salt: str = ""
    timeout: float = 0.0
    draft: int = -1
    logprobs: int = -1
    constraint: Constraint | None = None
    grammar: Spec | None = None
    logits_processors: Sequence[LogitsProcessor] = ()
    adapters: Mapping[str, float] | None = None
    control_vectors: Mapping[str, float] | None = None

    def checked(self) -> GenerateOptions:
        """A copy whose sampling has a seed. RequestError for values out of range or at odds."""
        if self.max_tokens < -1:
            raise RequestError(f"max_tokens is {self.max_tokens}: it must be -1 (no limit) or more")
        if not self.weight > 0 or not self.timeout >= 0:
            raise RequestError(
                f"weight is {self.weight}, timeout {self.timeout}: expected more than 0, and 0 or more"
            )
        check_policy(self.on_overflow)
        if self.constraint is not None and self.grammar is not None:
            raise RequestError("a grammar and a constraint were given: an answer takes one of them")
        if (self.constraint or self.grammar) and self.on_overflow == "shift":
            raise RequestError(
                "structured output cannot shift, for its grammar would begin anew: take on_overflow='error'"
            )
        return replace(self, sampling=self.seeded_sampling, stop=tuple(self.stop))

    @property
    def seeded_sampling(self) -> Sampling:
        """`sampling`, with a random seed where it has none."""
        sampling = self.sampling or Sampling()
        return sampling if sampling.seed is not None else sampling.with_seed(secrets.randbits(63))


class GenerateKwargs(TypedDict, total=False):
    """The fields of GenerateOptions as keyword arguments; a test holds the two equal."""

    max_tokens: int
    sampling: Sampling | None
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop_str_in_output: bool
    ignore_eos: bool
    progress: PromptProgress | None
    on_overflow: str
    priority: int
    client: str
    user: str
    weight: float
    salt: str
    timeout: float
    draft: int
    logprobs: int
    constraint: Constraint | None
    grammar: Spec | None
    logits_processors: Sequence[LogitsProcessor]
    adapters: Mapping[str, float] | None
    control_vectors: Mapping[str, float] | None
