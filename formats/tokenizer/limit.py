"""How many tokens a text may have, for all that is tokenized in one thread or task on behalf of one request.

A text is refused by its bytes where these alone tell that it has more; otherwise it is tokenized in pieces,
and given up as soon as there are too many. Outside of `at_most` nothing is limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from satchel.errors import RequestError

# Bytes of text for one token at most, for vocabularies that do not tell: they drop or squeeze some text. What
# is refused by it would be blanks, or letters without a token, nearly all.
UNKNOWN = 1024
PIECE = 1 << 15  # characters that are tokenized in one go, where a text can be cut
# Where no vocabulary but an odd one has a token that reaches across: words of plain letters meet.
BORDER = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")


class TooManyTokens(RequestError):
    """A text has at least `least` tokens, of which `most` may be."""

    def __init__(self, least: int, most: int) -> None:
        super().__init__(f"a text has at least {least:,} tokens, {most:,} are the most here: shorten it")
        self.least, self.most = least, most


_MOST: ContextVar[int | None] = ContextVar("satchel-most-tokens", default=None)


@contextmanager
def at_most(count: int) -> Iterator[None]:
    """Within it, a text of more than so many tokens raises TooManyTokens."""
    token = _MOST.set(count)
    try:
        yield
    finally:
        _MOST.reset(token)


def check(least: int) -> None:
    """TooManyTokens where so many, or more, are too many."""
    most = _MOST.get()
    if most is not None and least > most:
        raise TooManyTokens(least, most)


def check_made(count: int) -> None:
    """The same for tokens that were made; up to twice as many are, so that most errors have the number."""
    check(count // 2)


def pieces(text: str) -> Iterator[str]:
    """The text in pieces of some PIECE characters, cut where the words of most vocabularies end."""
    at = 0
    while len(text) - at > 2 * PIECE:
        border = BORDER.search(text, at + PIECE)
        if border is None:
            break
        yield text[at : border.start()]
        at = border.start()
    yield text[at:]
