"""The internal generation request, which every API flavour builds from its own: a conversation or texts, and
the options of generation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from satchel.cli.server.roles import ADMIN, USER, Role
from satchel.runtime.generate_options import GenerateKwargs


@dataclass(frozen=True, slots=True)
class Turn:
    """A chat completion. The fields without a comment are arguments of `Model.chat`."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    reasoning: bool | int | str | None = None
    reasoning_end: str = ""
    prefill: bool | None = None
    variables: Mapping[str, object] | None = None
    before: Sequence[int] = ()
    call: MustCall | None = None  # a forced tool call; None: the model decides
    one_call: bool = False  # generation ends after the first tool call


@dataclass(frozen=True, slots=True)
class MustCall:
    """A forced tool call."""

    names: Sequence[str]  # of the tools that may be called
    parallel: bool = False  # several calls are allowed


@dataclass(frozen=True, slots=True)
class Text:
    """A text completion."""

    prompt: str | Sequence[int | str]
    special: bool = False  # control tokens in the text are parsed
    bos: bool | None = None  # whether a BOS token is added; None: as the model file says
    last: int = 0  # the prompt is truncated to its last n tokens; 0: not at all, -1: to the context's length
    hole: str | None = None  # fill-in-the-middle: the suffix
    begun: str = ""  # fill-in-the-middle: the beginning of the middle part
    files: Sequence[tuple[str, str]] = ()  # fill-in-the-middle: name and text of other files of the project


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request for n completions of each prompt."""

    model: str  # a model's or an alias's name; "" for the default model
    prompt: Turn | Text
    kwargs: GenerateKwargs = field(default_factory=GenerateKwargs)  # fields of GenerateOptions
    n: int = 1
    grammar_field: str = ""  # the request field that kwargs["grammar"] comes from, for error messages
    others: Sequence[Text] = ()  # further prompts
    best_of: int = 0  # completions generated per prompt, of which the n likeliest are returned; 0: n
    words: Sequence[tuple[str, float]] = ()  # logit biases by text: each applies to all tokens of its text
    adapters: Mapping[int, float] | None = None  # LoRA scales by adapter index; adapters not named are off
    prompt_logprobs: int = -1  # top tokens to report beside each prompt token; -1: no report
    slot: int = -1  # the id under which the conversation's state can be saved; -1: none

    @property
    def prompts(self) -> tuple[Turn | Text, ...]:
        return (self.prompt, *self.others)

    @property
    def made(self) -> int:
        """The number of completions generated per prompt."""
        return max(self.n, self.best_of)


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request, as its API key identifies it."""

    user: str = ""  # a short hash of the key, by which an alias keeps its version; "" without keys
    salt: str = ""  # of the prefix cache and of saved states: each is found by the same salt only
    role: Role = USER
    most_priority: int = 1000  # its requests may have a priority of at least -most_priority

    @property
    def admin(self) -> bool:
        return self.role >= ADMIN

    @property
    def client(self) -> str:
        """The name under which the scheduler shares the machine fairly: the key; one for all without keys."""
        return self.user or "anonymous"
