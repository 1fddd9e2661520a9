"""Options of one request: GenerateOptions defines them, GenerateKwargs types the same names for `**kwargs`. A
new option is added here and nowhere else: its flag, its field in bodies and its range check are derived.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from satchel.errors import RequestError
from satchel.runtime.engine.constraint import Constraint
from satchel.runtime.engine.generate_request import LogitsProcessor
from satchel.runtime.grammar.spec import Spec
from satchel.runtime.request_option import check_options, documented, request_option
from satchel.runtime.sampling import Sampling
from satchel.runtime.words import POLICIES

PromptProgress = Callable[[int, int], None]


@documented
@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """Options of one request: how its answer is sampled, when it ends, and how it is scheduled."""

    # fmt: off
    max_tokens: int = request_option(
        -1,
        "Most tokens of the answer; -1: no limit but an end token and the context.",
        "-n", "--predict", "--n-predict",
        low=-1, high=1 << 31, env="N_PREDICT", also={-2: -1},
    )
    # fmt: on
    sampling: Sampling | None = request_option(
        None, "How tokens are drawn; None: the defaults. `checked` draws a seed where it has none."
    )
    stop: Sequence[str] = request_option(
        (), "Texts that end the answer, which does not hold them unless include_stop_str_in_output."
    )
    stop_token_ids: Sequence[int] = request_option(
        (), "Tokens that end the answer besides the model's own end tokens."
    )
    include_stop_str_in_output: bool = request_option(
        False, "The answer holds the stop text that ended it.", body=("include_stop_str_in_output",)
    )
    ignore_eos: bool = request_option(
        False, "Go on after the end token: the model cannot draw it.", "--ignore-eos", body=("ignore_eos",)
    )
    progress: PromptProgress | None = request_option(
        None, "Called with (tokens computed, tokens to compute) during the prefill."
    )
    on_overflow: str = request_option(
        "error",
        "What happens where prompt and answer exceed the context. error: the prompt is refused or the answer "
        "ends; truncate-middle: the middle of the prompt is dropped; shift: the oldest tokens are dropped.",
        choices=POLICIES,
        body=("on_overflow",),
    )
    priority: int = request_option(0, "Smaller is more urgent, among requests of one client.")
    client: str = request_option("", "Name under which fair scheduling accounts the request; '': `user`.")
    user: str = request_option("", "One of the client's users.")
    weight: float = request_option(1.0, "The user's share of what the client gets.", above=0)
    salt: str = request_option("", "Only requests with the same salt share cached prefixes.")
    timeout: float = request_option(0.0, "Seconds after which the answer ends; 0: none.", low=0)
    draft: int = request_option(
        -1,
        "Most draft tokens of speculative decoding; -1: as the model was loaded, 0: none.",
        low=-1,
        high=256,
        body=("speculative.n_max",),
    )
    logprobs: int = request_option(
        -1, "0: log probability of each token of the answer; k: of the k likeliest beside it too; -1: none."
    )
    constraint: Constraint | None = request_option(None, "Limits the answer token by token.")
    grammar: Spec | None = request_option(
        None, "Grammar that the engine compiles to a constraint; the finished answer is checked against it."
    )
    logits_processors: Sequence[LogitsProcessor] = request_option(
        (), "Functions of (tokens so far, logits) that change the logits."
    )
    adapters: Mapping[str, float] | None = request_option(
        None, "Scales of loaded adapters by name, others are off; None: as loaded."
    )
    control_vectors: Mapping[str, float] | None = request_option(
        None, "Scales of loaded control vectors by name, others are off; None: as loaded."
    )

    def checked(self) -> GenerateOptions:
        """A copy whose sampling has a seed. RequestError for values out of range or at odds."""
        check_options(self)
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
