"""The internal request that every API flavour makes of its own: a conversation or texts, and the options of
the answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from satchel.runtime.api.generate_options import GenerateKwargs
from satchel.server.roles import ADMIN, USER, Role


@dataclass(frozen=True, slots=True)
class Turn:
    """The next turn of a conversation; fields as Model.chat has them. call: what must be called, None where
    the model decides. one_call: the answer ends with its first call.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    reasoning: bool | int | str | None = None
    reasoning_end: str = ""
    prefill: bool | None = None
    variables: Mapping[str, object] | None = None
    before: Sequence[int] = ()
    call: MustCall | None = None
    one_call: bool = False


@dataclass(frozen=True, slots=True)
class MustCall:
    """The answer is a call of one of these tools, by name; parallel: or several calls."""

    names: Sequence[str]
    parallel: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """The continuation of a text or of token ids. special: control tokens in the text are parsed; bos: a
    begin token before it, None: as the file says. last: so many tokens of its end are read, 0: all, -1: as
    many as the context holds. hole: the text behind the place that the answer fills; begun: the beginning of
    the answer there; files: names and texts of others that belong to it.
    """

    prompt: str | Sequence[int | str]
    special: bool = False
    bos: bool | None = None
    last: int = 0
    hole: str | None = None
    begun: str = ""
    files: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request for n answers of the model of this name ("" for the default) to each of the prompts:
    `prompt`, then `others`. kwargs: fields of GenerateOptions. grammar_field: the request field that gave
    kwargs.grammar.

    best_of: so many answers are made to each, of which the n likeliest are given; 0: n. words: biases of the
    tokens that a text is made of. slot: a name for the conversation, by which its state can be saved; -1:
    none. adapters: scales of LoRA adapters by their place in the list of those that
    are loaded; those that are not named are off. prompt_logprobs: so many of the likeliest tokens beside each
    of the prompt's; -1: none.
    """

    model: str
    prompt: Turn | Text
    kwargs: GenerateKwargs = field(default_factory=GenerateKwargs)
    n: int = 1
    grammar_field: str = ""
    others: Sequence[Text] = ()
    best_of: int = 0
    words: Sequence[tuple[str, float]] = ()
    adapters: Mapping[int, float] | None = None
    prompt_logprobs: int = -1
    slot: int = -1

    @property
    def prompts(self) -> tuple[Turn | Text, ...]:
        return (self.prompt, *self.others)

    @property
    def made(self) -> int:
        """Answers to each prompt that are made."""
        return max(self.n, self.best_of)


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request. user: the key's name, by which it keeps its version of an alias; "" without
    keys. salt: what is cached or saved is found by the same salt only. role: what the caller may.
    most_priority: how far below 0 the priority of its requests may lie. share: its weight beside other keys.
    """

    user: str = ""
    salt: str = ""
    role: Role = USER
    most_priority: int = 1000
    share: float = 1.0

    @property
    def admin(self) -> bool:
        return self.role >= ADMIN

    @property
    def client(self) -> str:
        """The client whose share of the machine its requests have: the key; without keys all share one."""
        return self.user or "anonymous"
