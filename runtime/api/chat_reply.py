"""The answer to a conversation, split into reasoning, content and tool calls.

`events` and the pieces of the text are two views of one stream; either drives it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from satchel.formats.chat import (
    ChatParser,
    Collected,
    Content,
    Event,
    Reasoning,
    Style,
    TokenFeed,
    ToolCall,
    marker_ids,
)
from satchel.formats.chat.style import PAIRS
from satchel.formats.tokenizer import Detokenizer
from satchel.runtime.api import notebook
from satchel.runtime.api.answer_text import AnswerTextSettings
from satchel.runtime.api.chat import ChatPrompt
from satchel.runtime.api.generate_options import GenerateOptions
from satchel.runtime.api.overflow import Fitted
from satchel.runtime.api.reasoning import AFTER, INSIDE, ReasoningBudget, Thought
from satchel.runtime.api.reply import GeneratingModel, Reply
from satchel.runtime.engine.generate_request import GenerateRequest


class ChatReply(Reply):
    """As Reply; iteration gives the raw text, including markers that are text. `events` gives its parts.

    The reasoning budget is enforced here: when it is spent, the request continues from a prompt with the
    answer so far and the end of the reasoning, of which the cache has all but the last tokens.
    """

    def __init__(
        self,
        model: GeneratingModel,
        fitted: Fitted,
        options: GenerateOptions,
        style: Style,
        *,
        opening: str = "",
        tools: Sequence[Mapping[str, Any]] | None = None,
        budget: ReasoningBudget | None = None,
        thinks: bool = True,
    ) -> None:
        super().__init__(model, fitted, options)
        markers = marker_ids(model.tokenizer, style)
        self._markers, self._tools = markers, bool(tools)
        parser = ChatParser(style, tools=tools, opening=opening, tokens=markers.values())
        self._marked, self._said = TokenFeed(parser, markers), Collected()
        self._events: deque[Event] = deque()
        self._opening, self._budget, self._family = opening, budget, style
        self._tagged = (style.open, style.close) == PAIRS[0]
        self._hidden = any(model.tokenizer.is_control(i) for i in markers)
        # Without reasoning, the grammar starts at once.
        self._begins = opening if thinks or opening else "content"
        self._thought = Thought(model.tokenizer.token_bytes, style, self._begins) if style.open else None
        self._length = self._constrained_at = 0  # characters so far, and at the end of the reasoning
        self._fed: list[int] = []  # tokens of the current request
        self._read = False

    @classmethod
    def to(
        cls, model: GeneratingModel, prompt: ChatPrompt, fitted: Fitted, options: GenerateOptions
    ) -> ChatReply:
        """The answer to a rendered prompt."""
        most, budget = prompt.thinking.budget, None
        if most is not None:
            budget = ReasoningBudget(
                model.tokenizer, prompt.style, most, opening=prompt.opening, end=prompt.thinking.end
            )
        return cls(
            model,
            fitted,
            options,
            prompt.style,
            opening=prompt.opening,
            tools=prompt.tools,
            budget=budget,
            thinks=prompt.thinking.on is not False,
        )

    @property
    def spoken(self) -> str:
        """The text so far in the form that templates accept: only the content if markers are not part of the
        text.
        """
        return self.content if self._hidden else self.text

    @property
    def content(self) -> str:
        """The text so far without reasoning and tool calls."""
        return self._said.content

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return self._said.reasoning

    @property
    def reasoning_tokens(self) -> int:
        """Number of reasoning tokens so far, including the marker that ends it."""
        return self._thought.count if self._thought is not None else 0

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The complete tool calls."""
        return list(self._said.tool_calls)

    @property
    def notes(self) -> tuple[str, ...]:
        return (*super().notes, *self._said.notes)

    def message(self) -> dict[str, Any]:
        """The assistant's message so far, for the next turn."""
        return self._said.message()

    def events(self) -> Iterator[Event]:
        """Reasoning, text and tool calls as they come. Iteration may begin after the answer has: nothing is
        lost.
        """
        while True:
            yield from self.taken()
            if self.over:
                return
            with suppress(StopIteration):
                next(self)

    def shown(self) -> Iterator[str]:
        """Text to display, with reasoning in <think> tags whatever the model's markers are."""
        if self._tagged and not self._hidden:
            yield from self
            return
        inside = self._opening == "reasoning"
        for event in self.events():
            if isinstance(event, Content | Reasoning):
                thinks = isinstance(event, Reasoning)
                if thinks != inside:
                    yield f"{PAIRS[0][0]}\n" if thinks else f"\n{PAIRS[0][1]}\n\n"
                inside = thinks
                yield event.text

    def _repr_html_(self) -> str:
        """The answer so far, for a notebook: reasoning folded, content as Markdown, tool calls."""
        if not self.began:
            return super()._repr_html_()
        thinks = bool(self.reasoning) and not self.content and not self.over
        parts = [notebook.folded("Reasoning", self.reasoning, thinks)] if self.reasoning else []
        parts.append(notebook.markdown(self.content))
        parts += [notebook.folded(f"Call of {call.name}", call.arguments, True) for call in self.tool_calls]
        return "".join(parts) + self._footer()

    def taken(self) -> Iterator[Event]:
        """The events since the last call."""
        while self._events:
            yield self._events.popleft()

    def feed(self, token: int | None) -> str:
        piece = super().feed(token)
        if token is None or self.over or not self.ids or self.ids[-1] != token or token in self._stop_ids:
            return piece
        self._fed.append(token)
        if self._budget is None:
            return piece
        self._budget.accept(token)
        return piece + self._force(self._budget.forced) if self._budget.forced else piece

    @property
    def text_settings(self) -> AnswerTextSettings | None:
        plain = super().text_settings
        if plain is None or self._tools or self._budget is not None:
            return None
        return replace(plain, style=self._family, opening=self._opening, markers=self._markers)

    def _may_end(self, tokens: Sequence[int]) -> bool:
        return self._budget is not None or super()._may_end(tokens)

    def _texts(self, tokens: Sequence[int]) -> str:
        self._fed += tokens
        thought = self._thought
        if (thought is not None and thought.phase != AFTER) or self._marked.marks(tokens):
            return "".join(map(self._text, tokens))
        text = super()._texts(tokens)
        self._marked.text(text)
        self._length += len(text)
        return text

    def _force(self, ids: tuple[int, ...]) -> str:
        """Emits these tokens and continues after them."""
        context, made = [*self._context, *self._fed, *ids], self.stats.generated + len(ids)
        if len(context) > self.model.context or made >= self._limit or self.handle is None:
            return ""
        self.handle.cancel()
        piece = ""
        for token in ids:
            if self._budget:
                self._budget.accept(token)
            self.ids.append(token)
            piece += self._say(self._stop.feed(self._text(token)))
        self.stats.generated = made
        self._constrained_at = self._length
        if not self.over:
            self._context, self._resumed = context, self._resumed + 1
            self._submit()
        return piece

    def _submit(self) -> None:
        self._fed = []
        super()._submit()

    def _request(self, max_tokens: int) -> GenerateRequest:
        """The same; a grammar applies after the reasoning."""
        request = super()._request(max_tokens)
        if not self._family.open:
            return request
        return replace(request, style=self._family, opening="content" if self._resumed else self._begins)

    def _constrained_text(self) -> str:
        return self.text[self._constrained_at :]  # not the content, which lacks calls and space around it

    def _stream(self) -> Detokenizer:
        # After a prefill, the answer keeps its leading space.
        return self.model.tokenizer.stream(start=self._opening == "" and self._grammar is None)

    def _text(self, token: int) -> str:
        text = super()._text(token)
        self._marked.token(token, text)
        self._follow(token, text)
        return text

    def _follow(self, token: int, text: str) -> None:
        """Tracks the length of the text and the end of the reasoning in it."""
        self._length += len(text)
        if self._thought is None or self._thought.phase == AFTER:
            return
        before = self._thought.phase
        self._thought.accept(token)
        if INSIDE in (before, self._thought.phase):
            self._constrained_at = self._length

    def _tail(self) -> str:
        text = super()._tail()
        self._marked.text(text)
        return text

    def _say(self, piece: str) -> str:
        self._note(self._marked.show(len(piece)))
        return super()._say(piece)

    def _end(self) -> str:
        piece = super()._end()
        self._finish()
        return piece

    def close(self) -> None:
        super().close()
        self._finish()

    def _finish(self) -> None:
        if not self._read:
            self._read = True
            self._note(self._marked.finish())

    def _note(self, events: list[Event]) -> None:
        self._said.add_all(events)
        self._events += events
