"""Reasoning: its budget or effort, and the field of the response in which it is returned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from pydantic import Field

from satchel.formats.chat import Content, Event, Reasoning
from satchel.server.fields import MOST_TOKENS, Body
from satchel.server.problem import Problem

OPEN, CLOSE = "<think>\n", "\n</think>\n\n"
Where = Literal["auto", "none", "deepseek", "deepseek-legacy"]


class ThinkingFields(Body):
    """By OpenAI's, llama-server's and vLLM's names."""

    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    reasoning_format: Where = "auto"
    reasoning_budget_tokens: int | None = Field(default=None, ge=-1, le=MOST_TOKENS)
    thinking_token_budget: int | None = Field(default=None, ge=-1, le=MOST_TOKENS)
    reasoning_budget_message: str = Field(default="", max_length=10_000)
    include_reasoning: bool = True

    @property
    def reasoning(self) -> bool | int | str | None:
        """The `reasoning` argument of `Model.chat`."""
        given = [b for b in (self.thinking_token_budget, self.reasoning_budget_tokens) if b is not None]
        limits = [b for b in given if b >= 0]
        if self.reasoning_effort == "none":
            return False
        if limits and self.reasoning_effort is not None:
            name = "reasoning_effort"
            raise Problem("invalid", f"{name} and a number of tokens were given: it is one of them", name)
        return min(limits) if limits else self.reasoning_effort

    @property
    def where(self) -> Where:
        return self.reasoning_format


class Placed:
    """Places the reasoning of one completion as reasoning_format says: "none": in the content, between
    <think> tags; "deepseek-legacy": there and in reasoning_content; otherwise in reasoning_content only.
    shown: False drops the reasoning.
    """

    def __init__(self, where: Where, shown: bool) -> None:
        self._where, self._shown, self._inside = where, shown, False

        self.plain = where in ("auto", "deepseek") and shown

    def events(self, given: Iterable[Event]) -> Iterable[Event]:
        return given if self.plain else self._placed(given)

    def _placed(self, given: Iterable[Event]) -> Iterator[Event]:
        for event in given:
            thinks = isinstance(event, Reasoning)
            if isinstance(event, Reasoning):
                if not self._shown:
                    continue
                if self._where != "none":
                    yield event
                if self._where in ("none", "deepseek-legacy"):
                    yield Content(event.text if self._inside else OPEN + event.text)
            else:
                yield Content(CLOSE + event.text) if self._inside and isinstance(event, Content) else event
            self._inside = (self._inside or thinks) and (thinks or not isinstance(event, Content))

    def whole(self, content: str, reasoning: str) -> tuple[str, str]:
        """The content and the reasoning of a whole completion."""
        if not reasoning or not self._shown:
            return content, ""
        if self._where in ("auto", "deepseek"):
            return content, reasoning
        tagged = OPEN + reasoning + (CLOSE + content if content else "")
        return tagged, reasoning if self._where == "deepseek-legacy" else ""
