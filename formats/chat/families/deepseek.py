"""DeepSeek: a type, the name and fenced JSON between tokens (R1, V3), or the name and JSON (V3.1)."""

from __future__ import annotations

from satchel.formats.chat.calls import NAME_MOST, named
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Malformed, Steps

ALL, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
ONE, SEP, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
# Distilled models write variants of the section's marker.
OTHERS = ("<｜tool_calls_begin｜>", "<｜tool calls begin｜>", "<｜tool▁calls｜>")


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    if begin != ONE and (yield from reader.at(ONE)) is None:
        raise Malformed(f"{ONE} was expected")
    while True:
        yield from _call(reader)
        reader.start()
        if (yield from reader.at(ONE, ALL_END)) != ONE:
            return


def _call(reader: AnswerReader) -> Steps[None]:
    name, marker = yield from reader.text_until(SEP, most=NAME_MOST)
    if marker is None or not (yield from reader.skip()):
        raise Malformed("it is not complete")
    fence = None
    if reader.peek() != "{":
        name, marker = yield from reader.text_until("\n", "{", most=NAME_MOST)
        if marker == "{":
            reader.back(1)
        fence = yield from reader.at("```json", "```")
    yield from named(reader, name.strip())
    if fence:
        yield from reader.at("```")
    yield from reader.at(END)


FAMILY = Family((ALL, ONE, *OTHERS), grammar, marks=(ALL_END, SEP, END), tells=("```json",))
