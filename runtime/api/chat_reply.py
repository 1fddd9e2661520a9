"""The answer to a conversation: beside its text, what of it is thinking, what is said, which tools it calls.

`events` and the pieces of the text are two views of one stream; either drives it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

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
from satchel.runtime.api.chat import ChatPrompt
from satchel.runtime.api.generate_options import GenerateOptions
from satchel.runtime.api.overflow import Fitted
from satchel.runtime.api.reasoning import AFTER, INSIDE, ReasoningBudget, Thought
from satchel.runtime.api.reply import Reply
from satchel.runtime.engine.structured_output import StructuredOutput

if TYPE_CHECKING:
    from satchel.runtime.api.model import Model


class ChatReply(Reply):
    """As Reply; iteration gives the raw text, markers that are text included. `events` gives its parts.

    A budget for the thinking is kept here: where it is spent, the request goes on from a prompt that has what
    was said and the end of the thinking, of which the cache holds all but the last tokens.
    """

    def __init__(
        self,
        model: Model,
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
        parser = ChatParser(style, tools=tools, opening=opening, tokens=markers.values())
        self._marked, self._said = TokenFeed(parser, markers), Collected()
        self._events: deque[Event] = deque()
        self._opening, self._budget, self._family = opening, budget, style
        self._tagged = (style.open, style.close) == PAIRS[0]
        self._hidden = any(model.tokenizer.is_control(i) for i in markers)
        # Where the caller wants no thinking, a grammar allows none.
        self._begins = opening if thinks or opening else "content"
        self._thought = Thought(model.tokenizer.token_bytes, style, self._begins) if style.open else None
        self._length = self._constrained_at = 0  # characters of all tokens, and where the thinking was over
        self._fed: list[int] = []  # tokens since the request at hand was made
        self._read = False

    @classmethod
    def to(cls, model: Model, prompt: ChatPrompt, fitted: Fitted, options: GenerateOptions) -> ChatReply:
        """The answer to a prompt that was rendered."""
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
        """The text so far as templates take it back: the content alone where markers don't show in it."""
        return self.content if self._hidden else self.text

    @property
    def content(self) -> str:
        """What was said so far, thinking and calls aside."""
        return self._said.content

    @property
    def reasoning(self) -> str:
        """What was thought so far."""
        return self._said.reasoning

    @property
    def reasoning_tokens(self) -> int:
        """Tokens that were thought so far, the marker that ends the thinking among them."""
        return self._thought.count if self._thought is not None else 0

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls that are whole."""
        return list(self._said.tool_calls)

    @property
    def notes(self) -> tuple[str, ...]:
        return (*super().notes, *self._said.notes)

    def message(self) -> dict[str, Any]:
        """The assistant's message so far, for the next turn's conversation."""
        return self._said.message()

    def events(self) -> Iterator[Event]:
        """Thinking, text and calls as they come. It may begin later than the answer: nothing is lost."""
        while True:
            yield from self.taken()
            if self.over:
                return
            with suppress(StopIteration):
                next(self)

    def shown(self) -> Iterator[str]:
        """Pieces to show: the text, with thinking in <think> tags whatever the model's own markers are."""
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

    def taken(self) -> Iterator[Event]:
        """The events that came since the last time."""
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

    def _force(self, ids: tuple[int, ...]) -> str:
        """Says these tokens, and goes on behind them."""
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

    def _structured_output(self) -> StructuredOutput | None:
        """The grammar constrains what follows the thinking."""
        output = super()._structured_output()
        if output is None or not self._family.open:
            return output
        return StructuredOutput(output.grammar, self._family, "content" if self._resumed else self._begins)

    def _constrained_text(self) -> str:
        return self.text[self._constrained_at :]  # not the content, which lacks calls and space around it

    def _stream(self) -> Detokenizer:
        # Behind words of its own an answer keeps the space that it begins with.
        return self.model.tokenizer.stream(start=self._opening == "" and self._grammar is None)

    def _text(self, token: int) -> str:
        text = super()._text(token)
        self._marked.token(token, text)
        self._follow(token, text)
        return text

    def _follow(self, token: int, text: str) -> None:
        """Notes how far the text is, and where the thinking in it ends."""
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
