"""Maps a style's markers to tokens of a vocabulary, and feeds an answer's tokens to a parser."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from functools import lru_cache

from satchel.formats.chat.events import Event
from satchel.formats.chat.family import families
from satchel.formats.chat.parser import ChatParser
from satchel.formats.chat.style import PAIRS, Style
from satchel.formats.tokenizer import Kind, MarkerGuard, Tokenizer

TAG = re.compile(r"<[^<>\s]{1,80}>|\[[^\[\]\s]{1,80}\]|｜[^｜\s]{1,80}｜|◁[^◁▷\s]{1,80}▷")


def special_texts(tokenizer: Tokenizer) -> frozenset[str]:
    """The texts of control and user-defined tokens, at which text is split."""
    vocab = tokenizer.vocab
    return frozenset(vocab.tokens[i] for i in vocab.ids_of(Kind.CONTROL, Kind.USER_DEFINED))


def marker_ids(tokenizer: Tokenizer, style: Style) -> dict[int, str]:
    """The markers that are single tokens, by id."""
    vocab = tokenizer.vocab
    kinds = (Kind.CONTROL, Kind.USER_DEFINED)
    ids = ((vocab.index.get(text), text) for text in style.markers)
    return {i: text for i, text in ids if i is not None and vocab.types[i] in kinds}


def guard_of(tokenizer: Tokenizer, source: str) -> MarkerGuard:
    """A guard that keeps user text from becoming a control token, or a user-defined token that is a marker of
    a family or of reasoning, or a tag in the template. source: the template's text.
    """
    return tokenizer.guard(_tags(source))


@lru_cache(maxsize=16)
def _tags(source: str) -> frozenset[str]:
    known = {marker for family in families().values() for marker in family.markers}
    known |= {marker for pair in PAIRS for marker in pair} | set(TAG.findall(source))
    # A marker of only punctuation or only letters is an ordinary piece in some vocabularies.
    return frozenset(m for m in known if any(map(str.isalpha, m)) and not m.isalpha())


class TokenFeed:
    """Takes tokens with their texts, and returns events for the text that has been released.

    `show` releases text in order, once no stop string can begin in it. Markers are passed on with the text
    around them; hidden markers as soon as all text before them is released.
    """

    def __init__(self, parser: ChatParser, markers: dict[int, str]) -> None:
        self._parser, self._markers = parser, markers
        self._waiting: deque[tuple[str, str]] = deque()  # plain text, or the marker that it is
        self._begun = 0  # released characters of the first waiting marker

    def marks(self, tokens: Iterable[int]) -> bool:
        """Whether a marker is among the tokens."""
        return not self._markers.keys().isdisjoint(tokens)

    def token(self, token: int, text: str) -> None:
        """Adds a token. text: the text that it adds to the answer, "" for a hidden token."""
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
        """Releases `count` more characters."""
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
        """Ends the answer. Text that was not released is dropped."""
        cut = self._waiting[0][0][: self._begun] if self._begun else ""
        return [*self._parser.feed(cut), *self._parser.finish()]
