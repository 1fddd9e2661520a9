"""The chunks of one stream. Their constant part is serialized once: serializing it per chunk would take most
of the time from a sampled token to the client.
"""

from __future__ import annotations

from collections.abc import Mapping

from satchel.server.flavour import JsonObject
from satchel.server.stream import dumps, event
from satchel.server.text_frame import TextFrame

DONE = b"data: [DONE]\n\n"


class Chunks:
    """Writes the chunks of one stream. head: the fields that all chunks share."""

    def __init__(self, head: JsonObject) -> None:
        self._head = head
        self._frames: dict[tuple[int, str], TextFrame] = {}
        self._lead = f'data: {dumps(head)[:-1]},"choices":[{{"index":'

    def choice(self, index: int, said: JsonObject, more: JsonObject | None = None) -> bytes:
        """A chunk with one choice. said: its fields except the index; more: fields beside `choices`."""
        return event({**self._head, "choices": [{"index": index, **said}], **(more or {})})

    def delta(
        self, index: int, said: JsonObject, finish: str | None = None, more: JsonObject | None = None
    ) -> bytes:
        """A chunk of a chat completion."""
        return self.choice(index, {"delta": said, "finish_reason": finish}, more)

    def content(self, index: int, text: str) -> bytes:
        """A chat chunk with text only, which most chunks are."""
        return self._frame(index, '"delta":{"content":', "}").of(text)

    def text(self, index: int, text: str) -> bytes:
        """A text completion's chunk with text only."""
        return self._frame(index, '"text":', ',"logprobs":null').of(text)

    def _frame(self, index: int, before: str, after: str) -> TextFrame:
        key = index, before
        if key not in self._frames:
            lead = f"{self._lead}{index},{before}"
            self._frames[key] = TextFrame(lead, f'{after},"finish_reason":null}}]}}\n\n')
        return self._frames[key]

    @property
    def chat_frames(self) -> Mapping[str, TextFrame]:
        """How events of the first chat completion become chunks."""
        return {
            "content": self._frame(0, '"delta":{"content":', "}"),
            "reasoning": self._frame(0, '"delta":{"reasoning_content":', "}"),
        }

    @property
    def text_frames(self) -> Mapping[str, TextFrame]:
        """The same of the first text completion."""
        return {"content": self._frame(0, '"text":', ',"logprobs":null')}

    def last(self, more: JsonObject) -> bytes:
        """A chunk without a choice, such as the final usage."""
        return event({**self._head, "choices": [], **more})
