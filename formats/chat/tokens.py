"""A style's markers as tokens of a vocabulary, and the answer's tokens on their way to a parser."""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache

from satchel.formats.chat.events import Event
from satchel.formats.chat.family import families
from satchel.formats.chat.parser import ChatParser
from satchel.formats.chat.style import PAIRS, Style
from satchel.formats.tokenizer import Kind, MarkerGuard, Tokenizer

TAG = re.compile(r"<[^<>\s]{1,80}>|\[[^\[\]\s]{1,80}\]|｜[^｜\s]{1,80}｜|◁[^◁▷\s]{1,80}▷")


def special_texts(tokenizer: Tokenizer) -> frozenset[str]:
    """Texts of the tokens that text is cut at."""
    vocab = tokenizer.vocab
    return frozenset(vocab.tokens[i] for i in vocab.ids_of(Kind.CONTROL, Kind.USER_DEFINED))


def marker_ids(tokenizer: Tokenizer, style: Style) -> dict[int, str]:
    """The markers that are one token each, by id."""
    vocab = tokenizer.vocab
    kinds = (Kind.CONTROL, Kind.USER_DEFINED)
    ids = ((vocab.index.get(text), text) for text in style.markers)
    return {i: text for i, text in ids if i is not None and vocab.types[i] in kinds}


def guard_of(tokenizer: Tokenizer, source: str) -> MarkerGuard:
    """What keeps user text from becoming a token that means something to the chat: a control token, or a
    user-defined one that is a marker of a family or of thinking, or stands as a tag in the template. source:
    the template's text.
    """
    return tokenizer.guard(_tags(source))


@lru_cache(maxsize=16)
def _tags(source: str) -> frozenset[str]:
    known = {marker for family in families().values() for marker in family.markers}
    known |= {marker for pair in PAIRS for marker in pair} | set(TAG.findall(source))
    # A marker of signs or of letters alone is an ordinary piece in some vocabularies.
    return frozenset(m for m in known if any(map(str.isalpha, m)) and not m.isalpha())


class TokenFeed:
    """Takes each token with the text that it adds; gives events for as much of the text as was let through.

    Text is let through in order, by `show`, once no stop string can begin in it. Markers go with the text
    around them, those that readers don't see as soon as all text before them went.
    """

    def __init__(self, parser: ChatParser, markers: dict[int, str]) -> None:
        self._parser, self._markers = parser, markers
        self._waiting: deque[tuple[str, str]] = deque()  # plain text, or the marker that it is
        self._begun = 0  # characters of the marker in front that were let through

    def token(self, token: int, text: str) -> None:
        """text: what this token adds to the answer, "" for a token that is not shown."""
        marker = self._markers.get(token)
        if marker is None:
            self.text(text)
        elif not text:
            self._waiting.append(("", marker))
        else:
            self.text(text.removesuffix(marker) if text.endswith(marker) else "")
            self._waiting.append((marker, marker))

    def text(self, text: str) -> None:
        if text:
            self._waiting.append((text, ""))

    def show(self, count: int) -> list[Event]:
        """So many characters more were let through."""
        events: list[Event] = []
        waiting, count = self._waiting, count + self._begun
        self._begun = 0
        while waiting and (count or not waiting[0][0]):
            text, marker = waiting.popleft()
            if len(text) > count:
                if marker:
                    waiting.appendleft((text, marker))
                    self._begun = count
                    break
                waiting.appendleft((text[count:], ""))
                text = text[:count]
            events += self._parser.feed(marker or text, mark=bool(marker), shown=bool(text))
            count -= len(text)
        return events

    def finish(self) -> list[Event]:
        """The answer is over; what was not let through is none of it."""
        cut = self._waiting[0][0][: self._begun] if self._begun else ""
        return [*self._parser.feed(cut), *self._parser.finish()]
