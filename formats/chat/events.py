"""What a chat parser says while an answer streams, and the message that its events add up to.

Invariant: the same answer gives the same message however it was cut into pieces.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A tool call begins. index: its place among the calls that began, from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the call's arguments: JSON text, as the model wrote it."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is whole: its arguments are one JSON object."""

    index: int


@dataclass(frozen=True, slots=True)
class CallBroken:
    """The call that began is none: all of it follows as content, with a note."""

    index: int


@dataclass(frozen=True, slots=True)
class Note:
    """What a user should know of the answer's form."""

    text: str


Event = Reasoning | Content | CallBegin | CallArguments | CallEnd | CallBroken | Note


@dataclass(frozen=True, slots=True)
class ToolCall:
    """arguments: the text of a JSON object."""

    id: str
    name: str
    arguments: str

    def message(self) -> dict[str, Any]:
        """The form that conversations have it in."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


class Collected:
    """The message so far. tool_calls holds whole calls only. Two are equal whose messages are."""

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
        """The assistant's message, to be put into the conversation for its next turn."""
        said: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            said["reasoning_content"] = self.reasoning
        if self.tool_calls:
            said["content"] = self.content or None
            said["tool_calls"] = [call.message() for call in self.tool_calls]
        return said


def _joined(parts: list[str]) -> str:
    """The parts as one text, which then is the only part."""
    if len(parts) > 1:
        parts[:] = ["".join(parts)]
    return parts[0] if parts else ""
