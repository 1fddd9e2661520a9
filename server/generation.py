"""The internal generation request, into which each API flavour translates its own: a conversation or texts,
and request options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from satchel.runtime.api.generate_options import GenerateKwargs
from satchel.server.roles import ADMIN, USER, Role
from satchel.server.settings import MOST_PRIORITY


@dataclass(frozen=True, slots=True)
class Turn:
    """The next turn of a conversation, with the arguments of Model.chat."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    reasoning: bool | int | str | None = None
    reasoning_end: str = ""
    prefill: bool | None = None
    variables: Mapping[str, object] | None = None
    before: Sequence[int] = ()
    call: MustCall | None = None  # the tools that the answer must call; None: the model decides
    one_call: bool = False  # the answer ends after its first call


@dataclass(frozen=True, slots=True)
class MustCall:
    """The answer must call one of these tools."""

    names: Sequence[str]
    parallel: bool = False  # several calls are allowed


@dataclass(frozen=True, slots=True)
class Text:
    """The continuation of a text or of token ids."""

    prompt: str | Sequence[int | str]
    special: bool = False  # control tokens in the text are parsed
    bos: bool | None = None  # whether a begin token precedes the prompt; None: as the model file says
    last: int = 0  # number of last tokens that are used; 0: all, -1: as many as the context holds
    hole: str | None = None  # infilling: the text after the place that the answer fills
    begun: str = ""  # infilling: the beginning of the answer
    files: Sequence[tuple[str, str]] = ()  # infilling: names and texts of other files


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request for n answers to each of its prompts: `prompt`, then `others`."""

    model: str  # the served name; "": the default model
    prompt: Turn | Text
    kwargs: GenerateKwargs = field(default_factory=GenerateKwargs)
    n: int = 1
    grammar_field: str = ""  # the request field that gave kwargs["grammar"]
    others: Sequence[Text] = ()
    best_of: int = 0  # answers that are sampled per prompt, of which the n likeliest are returned; 0: n
    words: Sequence[tuple[str, float]] = ()  # logit biases of texts, for each of their tokens
    adapters: Mapping[int, float] | None = None  # scales of LoRA adapters by index, 0 for the others
    prompt_logprobs: int = -1  # number of likeliest tokens beside each token of the prompt; -1: none
    slot: int = -1  # number under which the conversation's state can be saved; -1: none
    # The sampling options that the request sets, by name; the model's defaults hold for the others.
    sampled: Mapping[str, Any] = field(default_factory=dict)
    # The API's limit on tokens where neither the request nor the model has one; -1: none.
    usual_tokens: int = -1

    @property
    def prompts(self) -> tuple[Turn | Text, ...]:
        return (self.prompt, *self.others)

    @property
    def made(self) -> int:
        """Answers that are sampled per prompt."""
        return max(self.n, self.best_of)


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request."""

    user: str = ""  # the key's name, which decides its version of an alias; "": the server has no keys
    salt: str = ""  # cached prefixes and saved states are found only with the same salt
    role: Role = USER
    most_priority: int = MOST_PRIORITY  # the most urgent priority that its requests may have, negated
    share: float = 1.0  # the key's weight beside other keys

    @property
    def admin(self) -> bool:
        return self.role >= ADMIN

    @property
    def client(self) -> str:
        """The client to which fair scheduling charges the requests: the key; without keys, one for all."""
        return self.user or "anonymous"
