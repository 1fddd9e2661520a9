"""The events of one stream. What is the same in all of them is written once, for most of a token's way to its
reader would be spent on that.
"""

from __future__ import annotations

from json.encoder import encode_basestring as quoted

from satchel.server.flavour import JsonObject
from satchel.server.stream import LINE_ENDS, dumps, event

DONE = b"data: [DONE]\n\n"


class Chunks:
    """head: what all events begin with."""

    def __init__(self, head: JsonObject) -> None:
        self._head = head
        self._lead = f'data: {dumps(head)[:-1]},"choices":[{{"index":'

    def choice(self, index: int, said: JsonObject, more: JsonObject | None = None) -> bytes:
        """An event with one choice. said: its fields but the index; more: fields beside the choices."""
        return event({**self._head, "choices": [{"index": index, **said}], **(more or {})})

    def delta(
        self, index: int, said: JsonObject, finish: str | None = None, more: JsonObject | None = None
    ) -> bytes:
        """An event of a conversation."""
        return self.choice(index, {"delta": said, "finish_reason": finish}, more)

    def content(self, index: int, text: str) -> bytes:
        """An event that says nothing but some text; by far the most are such."""
        said = quoted(text)
        if not said.isascii():
            said = said.translate(LINE_ENDS)
        return f'{self._lead}{index},"delta":{{"content":{said}}},"finish_reason":null}}]}}\n\n'.encode()

    def text(self, index: int, text: str) -> bytes:
        """The same for the continuation of a text."""
        said = quoted(text)
        if not said.isascii():
            said = said.translate(LINE_ENDS)
        return f'{self._lead}{index},"text":{said},"logprobs":null,"finish_reason":null}}]}}\n\n'.encode()

    def last(self, more: JsonObject) -> bytes:
        """An event without a choice."""
        return event({**self._head, "choices": [], **more})
