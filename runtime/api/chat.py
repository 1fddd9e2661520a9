"""Turns a conversation into a prompt: validated, rendered by the chat template, with the beginning of the
answer.

Invariant: text of callers never becomes a control token or a marker; text of the program itself may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from satchel.errors import RequestError
from satchel.formats.chat import Style, continued, fit, guard_of, parted
from satchel.formats.template import ChatTemplate
from satchel.formats.template.spoken import text_of
from satchel.formats.tokenizer import Tokenizer

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning options of a request."""

    on: bool | None = None  # None: the model's default
    budget: int | None = None  # most tokens of reasoning; None: no limit
    effort: str = ""  # value of the template's reasoning_effort
    end: str = ""  # text for the model when its budget is spent

    @classmethod
    def of(cls, reasoning: bool | int | str | None, end: str = "") -> Thinking:
        """Parses the option `reasoning`: None, a bool, a number of tokens (0: off), or an effort such as
        "low".
        """
        if reasoning is None or isinstance(reasoning, bool):
            return cls(reasoning, end=end)
        if isinstance(reasoning, int):
            if reasoning < 0:
                raise RequestError(f"reasoning is {reasoning}: it must be 0 (none) or more tokens")
            return cls(bool(reasoning), reasoning or None, end=end)
        if not isinstance(reasoning, str) or not reasoning:
            raise RequestError(
                f"reasoning is {reasoning!r}: expected True, False, a number of tokens or an effort"
            )
        return cls(True, effort=reasoning, end=end)


class ChatPrompt:
    """A conversation before it is answered.

    opening: where the prompt leaves the answer: "" at its start, "reasoning" or "content" inside of either;
    known after `render`.
    before: token ids of an earlier conversation that this one continues.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        style: Style,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        thinking: Thinking | None = None,
        prefill: bool | None = None,
        variables: Mapping[str, object] | None = None,
        before: Sequence[int] = (),
    ) -> None:
        self._template, self._tokenizer, self.style = template, tokenizer, style
        self.tools, self.thinking, self.opening = tools, thinking or Thinking(), ""
        self.messages = fit(messages, style.calls.ids if style.calls else "")
        self._guard = guard_of(tokenizer, template.source)
        if style.thinks:
            self.messages = parted(self.messages, style.open, style.close)
        last = continued(self.messages) if prefill is not False else None
        if prefill and last is None:
            raise RequestError(
                "prefill continues an assistant's message: "
                f"messages[{len(self.messages) - 1}] is not one that can be continued"
            )
        self._last = last
        self._before = before
        self._ids: list[int] | None = None
        self._variables = {**self._switches(), **(variables or {})}

    def _switches(self) -> dict[str, object]:
        thinking, style = self.thinking, self.style
        if thinking.effort and not style.efforts:
            raise RequestError(
                f"reasoning is {thinking.effort!r}: this model's template reads no reasoning_effort; "
                "it can be on, off or a number of tokens"
            )
        if thinking.on and not style.thinks:
            raise RequestError("reasoning: this model's template does not support thinking; leave it out")
        if thinking.effort:
            return {"reasoning_effort": thinking.effort}
        return {} if thinking.on is None else dict.fromkeys(style.switches, thinking.on)

    def text(self, messages: Sequence[Message]) -> str:
        """The prompt, with control tokens in callers' text escaped. Where the messages are the first ones
        alone, it has no beginning of the answer.
        """
        whole, escape = messages[-1] is self.messages[-1], self._guard.escape
        last = self._last if whole else None
        asked = messages[:-1] if last is not None else messages
        if not asked:
            raise RequestError("messages: there is only an assistant message; put a user message before it")
        said = self._template.render(asked, tools=self.tools, variables=self._variables, escape=escape)
        opened = said.rstrip().endswith(self.style.open)
        start, opening = self._start(last, opened)
        if whole:
            self.opening = opening
        return said + start

    def shown(self, messages: Sequence[Message]) -> str:
        """The prompt as readable text."""
        return self._guard.unescape(self.text(messages))

    def _start(self, last: Message | None, opened: bool) -> tuple[str, str]:
        """The beginning of the answer, which is the prefill or the end of a disabled reasoning section, and
        where it leaves the answer.
        """
        before = "reasoning" if opened else ""
        escape, off = self._guard.escape, self.thinking.on is False and self.style.thinks
        if last is None:
            if not off or (self.style.switches and not opened):
                return "", before
            return self.style.prefill("", "", opened), ""
        content, thought = text_of(last.get("content")), last.get("reasoning_content")
        if not content and not thought:
            return "", before
        reasoning = escape(thought) if thought else ("" if off and not self.style.switches else None)
        return self.style.prefill(reasoning, escape(content), opened), "content" if content else "reasoning"

    @property
    def ids(self) -> list[int]:
        """Token ids of the whole conversation."""
        return self.render(self.messages)

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of these messages, all of the conversation's or some, after those of the earlier
        conversation. Only an earlier conversation has the BOS token then. The whole conversation is rendered
        and tokenized once.
        """
        if messages is not self.messages:
            return self._rendered(messages)
        if self._ids is None:
            self._ids = self._rendered(messages)
        return list(self._ids)

    def _rendered(self, messages: Sequence[Message]) -> list[int]:
        ids = self._tokenizer.encode_rendered(self.text(messages), guard=self._guard)
        if not self._before:
            return ids
        return [*self._before, *(ids[1:] if ids and ids[0] == self._tokenizer.bos else ids)]
