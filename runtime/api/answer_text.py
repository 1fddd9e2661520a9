"""The text of an answer from its tokens alone: what a process needs that shows an answer and has neither the
model nor the request.

Invariant: after the same tokens, however they were divided, an AnswerText has given the events that a Reply
or ChatReply with these settings has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from satchel.formats.chat import ChatParser, Content, Event, Style, TokenFeed
from satchel.formats.tokenizer import Detokenizer, StopStrings


@dataclass(frozen=True, slots=True)
class AnswerTextSettings:
    """How an answer's tokens become text. Without a style, all of it is content."""

    strip: bool = False  # the space that a SentencePiece vocabulary puts before the first word is dropped
    stops: Sequence[str] = ()
    keeps_stop: bool = False
    style: Style | None = None
    opening: str = ""
    markers: Mapping[int, str] = field(default_factory=dict)  # of the style that are tokens, by id


class AnswerText:
    """Takes the tokens of an answer without tools, and returns the events of the text that they complete.

    piece: the bytes of a token, b"" for a hidden one.
    """

    def __init__(self, settings: AnswerTextSettings, piece: Callable[[int], bytes]) -> None:
        self._detokenizer = Detokenizer(piece, settings.strip)
        self._stop = StopStrings(settings.stops, settings.keeps_stop)
        self._marked: TokenFeed | None = None
        if settings.style is not None:
            markers = dict(settings.markers)
            parser = ChatParser(settings.style, opening=settings.opening, tokens=markers.values())
            self._marked = TokenFeed(parser, markers)

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the answer."""
        return self._stop.found is not None

    def feed(self, tokens: Sequence[int]) -> list[Event]:
        if self._marked is None:
            piece = self._stop.feed(self._detokenizer.feed(tokens))
            return [Content(piece)] if piece else []
        if not self._marked.marks(tokens):
            text = self._detokenizer.feed(tokens)
            self._marked.text(text)
            return self._marked.show(len(self._stop.feed(text)))
        events: list[Event] = []
        for token in tokens:
            text = self._detokenizer.feed(token)
            self._marked.token(token, text)
            events += self._marked.show(len(self._stop.feed(text)))
        return events
