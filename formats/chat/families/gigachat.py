"""A message of its own, "function call", behind the answer's text: GigaChat 3."""

from __future__ import annotations

from satchel.formats.chat.calls import Keys, calls
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Malformed, Steps

BORDER, ROLE_END = "<|message_sep|>", "<|role_sep|>"
ROLE = "function call"
KEYS = Keys()


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    """Parses a message after its border. A border without a call after it is dropped."""
    if (yield from reader.at(ROLE)) is None:
        reader.start()
        return
    if (yield from reader.at(ROLE_END)) is None:
        raise Malformed(f"{ROLE_END} was expected")
    yield from calls(reader, KEYS)


FAMILY = Family((BORDER,), grammar, marks=(ROLE_END,))
