"""Splits an answer into thinking and content while it streams, by <think> tags.

All text comes out in order, except for the tags and white space before the first one.
"""

from __future__ import annotations

from collections.abc import Iterator

from satchel.formats.chat import ChatParser, Content, Event, Reasoning, Style


class ThinkingSplitter:
    """Takes pieces, yields (text, whether it is thinking). started: the prompt ends inside <think>."""

    def __init__(self, started: bool = False) -> None:
        self._parser = ChatParser(Style(), opening="reasoning" if started else "", trim=False)

    def feed(self, piece: str) -> Iterator[tuple[str, bool]]:
        return _texts(self._parser.feed(piece))

    def flush(self) -> Iterator[tuple[str, bool]]:
        """The text that was held back as a possible beginning of a tag."""
        return _texts(self._parser.finish())


def _texts(events: list[Event]) -> Iterator[tuple[str, bool]]:
    for event in events:
        if isinstance(event, Content | Reasoning) and event.text:
            yield event.text, isinstance(event, Reasoning)
