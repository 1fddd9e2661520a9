"""What a caller may say about one request: Ask is the definition, Asking the same names for calls with
keywords. An option of a request is added here and nowhere else.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from satchel.quant import RequestError
from satchel.runtime.constraint import Constraint
from satchel.runtime.detail import Processor
from satchel.runtime.grammar.spec import Spec
from satchel.runtime.overflow import check_policy
from satchel.runtime.sampling import Sampling

PromptProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Ask:
    """max_tokens -1: until the end or a full context. sampling None: the defaults; a seed is drawn where it
    has none. stop: texts before which the answer ends; stop_tokens: tokens that end it besides the model's
    own. keep_stop: the text that ends the answer belongs to it. progress(tokens read, tokens to read) is told
    of the way through the prompt.

    on_overflow: "error"; "truncate-middle" cuts a prompt that is too long; "shift" lets an answer go on in a
    full context by forgetting older tokens. priority: smaller is more urgent, among requests of one client.
    client: whose share of the machine the request has; "" takes the user's. user: one of the client's users,
    who share what it has, by weight. salt: what is cached is found by requests of the same salt only.
    timeout: seconds after which the answer ends, 0: never. draft: tokens that may be guessed at once; -1: as
    the model was loaded, 0: none.

    logprobs: 0 for those of the tokens, k for the k likeliest beside each too. constraint: what holds the
    answer to a form, token by token; grammar: the same by its description, and checked when the answer ends.
    processors: functions of (tokens so far, logits) that change the logits.

    adapters, control_vectors: scales of those that were loaded, by name; None: as they were loaded, else
    those that are named alone.
    """

    max_tokens: int = -1
    sampling: Sampling | None = None
    stop: Sequence[str] = ()
    stop_tokens: Sequence[int] = ()
    keep_stop: bool = False
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
    processors: Sequence[Processor] = ()
    adapters: Mapping[str, float] | None = None
    control_vectors: Mapping[str, float] | None = None

    def checked(self) -> Ask:
        """The same with a seed. RequestError for what cannot be."""
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
        return replace(self, sampling=self.drawing, stop=tuple(self.stop))

    @property
    def drawing(self) -> Sampling:
        """The sampling with a seed."""
        chosen = self.sampling or Sampling()
        return chosen if chosen.seed is not None else chosen.with_seed(secrets.randbits(63))


class Asking(TypedDict, total=False):
    """The fields of Ask as keyword arguments; a test holds the two together."""

    max_tokens: int
    sampling: Sampling | None
    stop: Sequence[str]
    stop_tokens: Sequence[int]
    keep_stop: bool
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
    processors: Sequence[Processor]
    adapters: Mapping[str, float] | None
    control_vectors: Mapping[str, float] | None
