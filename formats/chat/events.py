"""Events of a chat parser, and the message that they add up to.

Invariant: the same answer gives the same message however it is split into pieces.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """The beginning of a tool call."""

    index: int  # from 0, counting all calls that began
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the call's arguments: JSON text as the model wrote it."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of a complete call: its arguments are one JSON object."""

    index: int


@dataclass(frozen=True, slots=True)
class CallBroken:
    """The retraction of a malformed call: its whole text follows as content, with a note."""

    index: int


@dataclass(frozen=True, slots=True)
class Note:
    """A remark for the user about the answer's format."""

    text: str


Event = Reasoning | Content | CallBegin | CallArguments | CallEnd | CallBroken | Note


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete tool call."""

    id: str
    name: str
    arguments: str  # the text of a JSON object

    def message(self) -> dict[str, Any]:
        """The call as an entry of a message's tool_calls."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


class Collected:
    """The message so far. tool_calls has complete calls only. Two objects with equal messages are equal."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.tool_calls: list[ToolCall] = []
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._open: dict[int, tuple[str, str, list[str]]] = {}

    @property
    def content(self) -> str:
        return _joined(self._content)

    @property
    def reasoning(self) -> str:
        return _joined(self._reasoning)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Collected):
            return NotImplemented
        return (self.message(), self.notes) == (other.message(), other.notes)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Collected({self.message()}, notes={self.notes})"

    def add(self, event: Event) -> None:
        match event:
            case Content(text):
                self._content.append(text)
            case Reasoning(text):
                self._reasoning.append(text)
            case Note(text):
                self.notes.append(text)
            case CallBegin(index, made, name):
                self._open[index] = (made, name, [])
            case CallArguments(index, text):
                self._open[index][2].append(text)
            case CallEnd(index):
                made, name, texts = self._open.pop(index)
                self.tool_calls.append(ToolCall(made, name, "".join(texts)))
            case CallBroken(index):
                del self._open[index]

    def add_all(self, events: Iterable[Event]) -> Collected:
        for event in events:
            self.add(event)
        return self

    def message(self) -> dict[str, Any]:
        """The assistant's message for the conversation's next turn."""
        said: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            said["reasoning_content"] = self.reasoning
        if self.tool_calls:
            said["content"] = self.content or None
            said["tool_calls"] = [call.message() for call in self.tool_calls]
        return said


def _joined(parts: list[str]) -> str:
    """Joins the parts in place and returns the text."""
    if len(parts) > 1:
        parts[:] = ["".join(parts)]
    return parts[0] if parts else ""
