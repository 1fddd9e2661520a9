"""Request options. Each is one field of GenerateOptions or of Sampling (runtime/option.py), from which its
flag, its field in request bodies and its range check are derived. GenerateKwargs types the names of both for
`**kwargs`. A new request option is added in this file alone, one of sampling in sampling/options.py alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, Unpack

from satchel.errors import RequestError
from satchel.runtime.engine.constraint import Constraint
from satchel.runtime.engine.generate_request import LogitsProcessor
from satchel.runtime.grammar.spec import Spec
from satchel.runtime.option import check_options, documented, option_field, options_of, texts_of
from satchel.runtime.sampling import Sampling, SamplingKwargs
from satchel.runtime.sampling.logprobs import TOP
from satchel.runtime.words import POLICIES

PromptProgress = Callable[[int, int], None]


@documented
@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """Options of one request: how its answer is sampled, when it ends, and how it is scheduled."""

    # fmt: off
    max_tokens: int = option_field(
        -1,
        "Most tokens of the answer; -1: until an end token or the end of the context.",
        "-n", "--predict", "--n-predict",
        low=-1, high=1 << 31, env="N_PREDICT", also={-2: -1},
    )
    # fmt: on
    sampling: Sampling | None = option_field(
        None, "Sampling options; None: the defaults. `checked` draws a seed where they have none."
    )
    stop: str | Sequence[str] = option_field(
        (),
        "A text that ends the answer, or several. include_stop_str_in_output says whether the answer includes"
        " it.",
    )
    stop_token_ids: Sequence[int] = option_field(
        (), "Tokens that end the answer, besides the model's own end tokens."
    )
    include_stop_str_in_output: bool = option_field(
        False, "The answer includes the stop text that ended it.", body=True
    )
    ignore_eos: bool = option_field(
        False, "Never sample an end token, so that the answer goes on.", "--ignore-eos", body=True
    )
    progress: PromptProgress | None = option_field(
        None, "Called with (tokens computed, tokens to compute) during the prefill."
    )
    on_overflow: str = option_field(
        "error",
        "What happens when prompt and answer exceed the context. error: the prompt is refused or the answer"
        " ends; truncate-middle: the middle of the prompt is dropped; shift: the oldest tokens are dropped.",
        choices=POLICIES,
        body=True,
    )
    priority: int = option_field(0, "Order among the requests of one client: the smallest goes first.")
    client: str = option_field("", "Client to which fair scheduling charges the request; '': `user`.")
    user: str = option_field("", "The client's user who sent the request.")
    weight: float = option_field(1.0, "The user's weight beside the client's other users.", above=0)
    salt: str = option_field("", "Requests share cached prefixes only with requests of the same salt.")
    timeout: float = option_field(0.0, "Seconds after which the answer ends; 0: none.", low=0)
    draft: int = option_field(
        -1,
        "Most draft tokens of a step; -1: as the model was loaded, 0: no speculative decoding.",
        low=-1,
        high=256,
        body=("speculative.n_max",),
    )
    logprobs: int = option_field(
        -1,
        "k: log probabilities of each answer token and of the k likeliest tokens beside it; -1: none.",
        low=-1,
        high=TOP,
    )
    constraint: Constraint | None = option_field(None, "Allows or forbids each token of the answer.")
    grammar: Spec | None = option_field(
        None, "Grammar of the answer. The engine compiles it, and checks the finished answer against it."
    )
    logits_processors: Sequence[LogitsProcessor] = option_field(
        (), "Functions of (tokens so far, logits) that change the logits in place or return others."
    )
    adapters: Mapping[str, float] | None = option_field(
        None, "Scales of LoRA adapters by name, 0 for the others; None: as the model was loaded."
    )
    control_vectors: Mapping[str, float] | None = option_field(
        None, "Scales of control vectors by name, 0 for the others; None: as the model was loaded."
    )

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "stop", texts_of("stop", self.stop))

    @classmethod
    def of(cls, **kwargs: Unpack[GenerateKwargs]) -> Self:
        """The options of keyword arguments. Those of sampling change `sampling`, or the defaults."""
        own: dict[str, Any] = {**kwargs}
        drawn = {name: own.pop(name) for name in options_of(Sampling) if name in own}
        if drawn:
            own["sampling"] = replace(own.get("sampling") or Sampling(), **drawn)
        return cls(**own)

    def checked(self) -> GenerateOptions:
        """A copy whose sampling has a seed. Raises RequestError for options that exclude each other."""
        if self.constraint is not None and self.grammar is not None:
            raise RequestError("grammar and constraint: expected one of them, got both; leave one out")
        if (self.constraint or self.grammar) and self.on_overflow == "shift":
            raise RequestError(
                "on_overflow is 'shift': expected another policy for structured output, whose grammar a shift"
                " would restart; take 'error'"
            )
        return replace(self, sampling=self.seeded_sampling)

    @property
    def seeded_sampling(self) -> Sampling:
        """`sampling`, with a random seed where it has none."""
        sampling = self.sampling or Sampling()
        return sampling if sampling.seed is not None else sampling.with_seed(secrets.randbits(63))


class GenerateKwargs(SamplingKwargs, total=False):
    """The fields of GenerateOptions and of Sampling as keyword arguments; a test keeps them equal."""

    max_tokens: int
    sampling: Sampling | None
    stop: str | Sequence[str]
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
