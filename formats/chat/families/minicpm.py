"""<function name="NAME"> with <param name="KEY"> tags, a value in CDATA where it needs that: MiniCPM 5."""

from __future__ import annotations

from satchel.formats.chat.calls import NAME_MOST
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Malformed, Steps
from satchel.formats.chat.tagged import Members

BEGIN, END = '<function name="', "</function>"
PARAM, PARAM_END = '<param name="', "</param>"
CDATA, CDATA_END = "<![CDATA[", "]]>"


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    name, closed = yield from reader.text_until('">', most=NAME_MOST)
    if closed is None:
        raise Malformed("it is not complete")
    yield reader.begin(name)
    members = Members(reader, name)
    while (marker := (yield from reader.at(PARAM, END))) == PARAM:
        key, closed = yield from reader.text_until('">', most=NAME_MOST)
        if closed is None:
            raise Malformed("it is not complete")
        yield reader.arguments(members.add(key, (yield from _value(reader))))
    if marker is None:
        raise Malformed(f"{PARAM} or {END} was expected")
    yield reader.arguments(members.end())
    yield reader.end()


def _value(reader: AnswerReader) -> Steps[str]:
    """Reads the text of a value; text inside CDATA may contain any tag."""
    text, found = yield from reader.text_until(PARAM_END, CDATA)
    while found == CDATA:
        inner, found = yield from reader.text_until(CDATA_END)
        after, found = ("", None) if found is None else (yield from reader.text_until(PARAM_END, CDATA))
        text += inner + after
    if found is None:
        raise Malformed("it is not complete")
    return text


FAMILY = Family((BEGIN,), grammar)
