"""[TOOL_CALLS] before a list of objects with ids of nine letters (v3, v7), or NAME[ARGS]{...} (v11)."""

from __future__ import annotations

from satchel.formats.chat.calls import NAME_MOST, Keys, calls, named
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Malformed, Steps

BEGIN, ARGS, ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
KEYS = Keys(ids=("id",))


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    if (yield from reader.skip()) and reader.peek() in "[{":
        yield from calls(reader, KEYS)
        return
    name, marker = yield from reader.text_until(ID, ARGS, "{", most=NAME_MOST)
    made = ""
    if marker == ID:
        made, marker = yield from reader.text_until(ARGS, "{", most=NAME_MOST)
    if marker is None:
        raise Malformed("it is not complete")
    if marker == "{":
        reader.back(1)
    yield from named(reader, name.strip(), made.strip())


FAMILY = Family((BEGIN,), grammar, marks=(ARGS, ID), ids="letters9", tells=(ARGS,))
