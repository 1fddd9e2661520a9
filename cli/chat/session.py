"""A chat session: sends the user's turns to the model, and writes answers and status lines.

The conversation changes only when an answer arrives: a failed message leaves it unchanged.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from satchel.cli.chat.about import model_name
from satchel.cli.chat.attach import Attachment, mentioned, with_files
from satchel.cli.chat.display import DIM, AnswerOutput, Look
from satchel.cli.chat.echo import silent
from satchel.cli.chat.history import SETTINGS, ChatMessage, ChatSettings, Conversation, save
from satchel.cli.chat.respond import ChatAnswer, ChatRequest, respond
from satchel.errors import RequestError
from satchel.runtime.api.generate_options import GenerateKwargs
from satchel.runtime.sampling import MASK

if TYPE_CHECKING:
    from satchel.runtime.api.chat import ChatPrompt
    from satchel.runtime.api.model import Model
    from satchel.runtime.api.reply import Stats
    from satchel.runtime.grammar import Spec

CHOICE = "(--on-overflow error stops instead; /clear begins anew)"


@dataclass(frozen=True, slots=True)
class How:
    """Options of all answers apart from sampling."""

    kwargs: GenerateKwargs = field(default_factory=GenerateKwargs)  # fields of GenerateOptions
    grammar: Spec | None = None
    reasoning: bool | int | str | None = None
    on_overflow: str = "shift"

    @property
    def policy(self) -> str:
        """What a context means that is full before the answer ends. Structured output cannot shift."""
        return "error" if self.grammar is not None and self.on_overflow == "shift" else self.on_overflow

    @property
    def stop(self) -> tuple[str, ...]:
        return tuple(self.kwargs.get("stop", ()))

    def with_stop(self, stop: tuple[str, ...]) -> How:
        return replace(self, kwargs={**self.kwargs, "stop": stop})


@dataclass(slots=True)
class Totals:
    """Token counts and times over all answers of a run."""

    answers: int = 0
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    drafted: int = 0
    accepted: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    def add(self, stats: Stats) -> None:
        self.answers += 1
        for name in ("prompt", "cached", "generated", "drafted", "accepted"):
            setattr(self, name, getattr(self, name) + getattr(stats, name))
        self.prefill_seconds += stats.prefill_seconds
        self.decode_seconds += stats.decode_seconds


class ChatOutput(Protocol):
    """The output of a session."""

    def start(self, session: Session) -> None:
        """Writes the description of the model before the first turn."""

    def say(self, session: Session, text: str, style: str) -> None:
        """Writes a status line."""

    def fail(self, session: Session, text: str) -> None:
        """Writes an error."""

    def writer(self, session: Session) -> AnswerOutput:
        """The sink for the next answer."""

    def report_answer(self, session: Session, answer: ChatAnswer) -> None:
        """Writes the report of a finished answer: counts, timings, notes."""


class ChatLoader(Protocol):
    """Loads a model with the options of the command line."""

    def load(self, path: Path) -> Model:
        """The model in a file."""

    def settings(self, model: Model) -> ChatSettings:
        """The settings of a chat with the model before the user changes any."""


@dataclass(slots=True)
class Session:
    """The state of a chat."""

    model: Model
    conversation: Conversation
    look: Look
    interactive: bool  # stdin and stdout are a terminal; otherwise stdout gets answers only
    out: ChatOutput
    verbose: bool = False
    markdown: bool = False
    report: bool = False
    how: How = field(default_factory=How)
    file: Path | None = None  # where /save without a name writes
    keeps: bool = False  # save to `file` after each answer
    loading: float = 0.0  # seconds that loading took
    used: int = 0  # tokens in the context
    forgotten: int = 0  # turns at the beginning that a full context has shifted out
    errors: int = 0
    stopped: bool = False  # the user interrupted the last answer
    attached: list[Attachment] = field(default_factory=list)  # files for the next message
    loader: ChatLoader | None = None  # loads another model for /model
    totals: Totals = field(default_factory=Totals)
    _retries: int = 0
    _noted: int = 0

    @property
    def settings(self) -> ChatSettings:
        return self.conversation.settings

    def send(self, text: str) -> None:
        """Sends a turn with the files that it names and the attached ones, and answers it. RequestError where
        a named file is missing.
        """
        named, missing = mentioned(text)
        if missing:
            names = ", ".join(missing)
            raise RequestError(
                f"{names}: no such file; nothing was sent; `@{missing[0]}` in backquotes is text"
            )
        for one in named:
            self.say(f"{one.name}: {len(one.text):,} characters go with the message", DIM)
        self.send_plain(with_files(text, [*self.attached, *named]))
        self.attached.clear()

    def send_plain(self, text: str) -> None:
        """Sends a turn without reading @FILE names in it."""
        self._retries = 0
        self._ask(self.conversation.turns, text, self.settings.sampling.seed)

    def resume(self, turns: tuple[ChatMessage, ...], system: str) -> None:
        """Continues with the turns of another conversation."""
        self.conversation = replace(self.conversation, turns=turns, system=system)
        self.used = self.forgotten = 0

    def sent(self, conversation: Conversation) -> list[dict[str, str]]:
        """The messages that the model reads."""
        return conversation.messages(self.forgotten)

    def change_model(self, path: Path) -> None:
        """Goes on with the model in a file. What the user has set stays, and otherwise its own settings
        hold. Where it cannot be loaded, the present one stays.
        """
        if self.loader is None:
            raise RequestError("this chat keeps its model")
        old, new = self.model, self.loader.load(path)
        try:
            if self.how.grammar is not None:
                from satchel.cli.grammars import check_spec

                check_spec(new, self.how.grammar)
            settings, usual = self.loader.settings(new), self.loader.settings(old)
            for name in SETTINGS:
                if self.settings.value(name) != usual.value(name):
                    settings = settings.with_value(name, self.settings.value(name))
        except BaseException:
            new.close()
            raise
        self.model, self._noted = new, 0
        self.conversation = replace(self.conversation, model=model_name(new), settings=settings)
        self.resume(self.conversation.turns, self.conversation.system)
        old.close()

    def regenerate(self) -> None:
        """Answers the last message again. A fixed seed is incremented, so that the answer differs."""
        turns = self.conversation.turns
        if not turns:
            raise RequestError("nothing was answered yet")
        if self.settings.sampling.temperature == 0:
            raise RequestError("the temperature is 0, so the answer would be the same: /set temperature 0.8")
        self._retries += 1
        seed = self.settings.sampling.seed
        self._ask(turns[:-2], turns[-2].content, None if seed is None else (seed + self._retries) & MASK)

    def _ask(self, before: Sequence[ChatMessage], text: str, seed: int | None) -> None:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the message is no text at character {error.start}: it was not sent"
            ) from None
        asked = replace(self.conversation, turns=(*before, ChatMessage("user", text)))
        prompt = self._fit(asked)
        answer = self._answer(prompt, self._request(seed))
        self.used = min(self.model.context, answer.stats.prompt + answer.stats.generated)
        self.stopped = answer.stopped
        self.totals.add(answer.stats)
        if answer.text or not answer.stopped:
            turn = ChatMessage("assistant", answer.text, answer.stopped)
            self.conversation = replace(asked, turns=(*asked.turns, turn))
        self.out.report_answer(self, answer)
        if self.keeps and self.file is not None:
            save(self.conversation, self.file)
        if answer.twice or (answer.stopped and not self.interactive):
            raise KeyboardInterrupt  # in a pipe, Ctrl-C ends the program instead of one answer

    def _fit(self, asked: Conversation) -> ChatPrompt:
        """The prompt of a conversation. Where the context is full, the oldest turns are forgotten until half
        of it is free, unless the user has chosen otherwise. RequestError for what does not fit.
        """
        context, policy = self.model.context, self.how.on_overflow
        prompt = self._prompt(asked, self.forgotten)
        size = len(prompt.ids)
        self.tell_notes()
        ends = range(self.forgotten + 2, len(asked.turns), 2)
        if size > context and policy == "shift" and ends:
            at = bisect_left(ends, True, key=lambda end: len(self._prompt(asked, end).ids) <= context // 2)
            end = ends[min(at, len(ends) - 1)]
            prompt = self._prompt(asked, end)
            size = len(prompt.ids)
            if size <= context:
                self.forgotten = end
                self.say(f"the context of {context:,} tokens is full: {end} messages are forgotten {CHOICE}")
        if size > context and policy != "truncate-middle":
            what = "the message alone" if policy == "shift" else "the conversation"
            raise RequestError(
                f"{what} would have {size:,} tokens, the context holds {context:,}: "
                "/clear forgets the conversation, -c at the start gives more room; the message was not added"
            )
        return prompt

    def _prompt(self, asked: Conversation, forgotten: int) -> ChatPrompt:
        return self.model.chat_prompt(asked.messages(forgotten), reasoning=self.how.reasoning)

    def _request(self, seed: int | None) -> ChatRequest:
        return ChatRequest(
            replace(self.settings.sampling, seed=seed),
            {
                **self.how.kwargs,
                "max_tokens": self.settings.max_tokens,
                "grammar": self.how.grammar,
                "on_overflow": self.how.policy,
            },
        )

    def _answer(self, prompt: ChatPrompt, request: ChatRequest) -> ChatAnswer:
        writer = self.out.writer(self)
        with ExitStack() as stack:
            if self.interactive:
                stack.enter_context(silent(sys.stdin))
            stack.callback(writer.finish)
            return respond(self.model, prompt, request, writer)

    def say(self, text: str, style: str = "") -> None:
        """Writes a status line."""
        self.out.say(self, text, style)

    def fail(self, text: str) -> None:
        self.errors += 1
        self.out.fail(self, text)

    def gap(self) -> None:
        """An empty line before the next prompt of a terminal."""
        if self.interactive:
            print()

    def tell_notes(self) -> None:
        """Writes the model's notes since the last call."""
        for line in self.model.notes[self._noted :]:
            self.say(f"note: {line}", DIM)
        self._noted = len(self.model.notes)

    def begin(self) -> None:
        """Writes the start of a chat: model, size and type, context, device."""
        self.out.start(self)
        self.tell_notes()
        self.gap()
