"""The chunks of one stream. Their constant part is serialized once: serializing it per chunk would take most
of the time from a sampled token to the client.
"""

from __future__ import annotations

from json.encoder import encode_basestring as quoted

from satchel.server.flavour import JsonObject
from satchel.server.stream import LINE_ENDS, dumps, event

DONE = b"data: [DONE]\n\n"


class Chunks:
    """Writes the chunks of one stream. head: the fields that all chunks share."""

    def __init__(self, head: JsonObject) -> None:
        self._head = head
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
        said = f'"delta":{{"content":{_json(text)}}}'
        return f'{self._lead}{index},{said},"finish_reason":null}}]}}\n\n'.encode()

    def text(self, index: int, text: str) -> bytes:
        """A text completion's chunk with text only."""
        said = f'"text":{_json(text)},"logprobs":null'
        return f'{self._lead}{index},{said},"finish_reason":null}}]}}\n\n'.encode()

    def last(self, more: JsonObject) -> bytes:
        """A chunk without a choice, such as the final usage."""
        return event({**self._head, "choices": [], **more})


def _json(text: str) -> str:
    said = quoted(text)
    return said if said.isascii() else said.translate(LINE_ENDS)
