"""Tells an answer's thinking from the rest while it streams, as the library's parser does for <think> tags.

All text but the tags, and white space before the first, comes out again, in order.
"""

from __future__ import annotations

from collections.abc import Iterator

from satchel.formats.chat import ChatParser, Content, Event, Reasoning, Style


class ThinkingSplitter:
    """Feed pieces, get (text, whether it is thinking). started: the prompt ended inside of a <think>."""

    def __init__(self, started: bool = False) -> None:
        self._parser = ChatParser(Style(), opening="reasoning" if started else "", trim=False)

    def feed(self, piece: str) -> Iterator[tuple[str, bool]]:
        return _texts(self._parser.feed(piece))

    def flush(self) -> Iterator[tuple[str, bool]]:
        """What was held back as the possible beginning of a tag."""
        return _texts(self._parser.finish())


def _texts(events: list[Event]) -> Iterator[tuple[str, bool]]:
    for event in events:
        if isinstance(event, Content | Reasoning) and event.text:
            yield event.text, isinstance(event, Reasoning)
