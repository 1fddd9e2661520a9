"""A limit on the tokens of a text, for everything that one thread or task tokenizes for a request.

A text is refused before tokenization where its byte count proves that it exceeds the limit. Otherwise it is
tokenized in pieces until the limit is exceeded. Outside of `at_most` there is no limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from satchel.errors import RequestError

# The assumed maximum of bytes per token for vocabularies without one, which drop or merge some text. A text
# that is wrongly refused by it would consist almost only of spaces or of letters without a token.
UNKNOWN = 1024
PIECE = 1 << 15  # characters that are tokenized at a time, where a text can be split
# The space between two words of letters: tokens of nearly all vocabularies do not cross it.
BORDER = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")


class TooManyTokens(RequestError):
    """A text has at least `least` tokens; the limit is `most`."""

    def __init__(self, least: int, most: int) -> None:
        super().__init__(f"a text has at least {least:,} tokens, expected at most {most:,}: shorten it")
        self.least, self.most = least, most


_MOST: ContextVar[int | None] = ContextVar("satchel-most-tokens", default=None)


@contextmanager
def at_most(count: int) -> Iterator[None]:
    """A context in which a text of more than `count` tokens raises TooManyTokens."""
    token = _MOST.set(count)
    try:
        yield
    finally:
        _MOST.reset(token)


def check(least: int) -> None:
    """Raises TooManyTokens where `least` tokens exceed the limit."""
    most = _MOST.get()
    if most is not None and least > most:
        raise TooManyTokens(least, most)


def check_made(count: int) -> None:
    """As check, for tokens already encoded. Allows twice the limit, so that most errors give the exact
    number.
    """
    check(count // 2)


def pieces(text: str) -> Iterator[str]:
    """The text in pieces of about PIECE characters, split at BORDER."""
    at = 0
    while len(text) - at > 2 * PIECE:
        border = BORDER.search(text, at + PIECE)
        if border is None:
            break
        yield text[at : border.start()]
        at = border.start()
    yield text[at:]
