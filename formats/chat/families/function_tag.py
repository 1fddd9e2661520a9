"""<function=NAME>{...}</function>: Functionary 3.1, and Llama 3.x with tools in the system message."""

from __future__ import annotations

from satchel.formats.chat.calls import NAME_MOST, named
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Malformed, Steps


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    name, closed = yield from reader.text_until(">", most=NAME_MOST)
    if closed is None:
        raise Malformed("it is not complete")
    yield from named(reader, name.strip().strip('"'))
    yield from reader.at("</function>")


FAMILY = Family(("<function=",), grammar, order=2)
