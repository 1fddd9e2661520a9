"""<tool_call>NAME with <arg_key> and <arg_value> tags: GLM 4.5 and later."""

from __future__ import annotations

from satchel.formats.chat.calls import NAME_MOST
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Malformed, Steps
from satchel.formats.chat.tagged import Members, Pairs, paired

PAIRS = Pairs("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>")


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    name, marker = yield from reader.text_until(PAIRS.key, PAIRS.end, most=NAME_MOST)
    if "{" in name or marker is None:
        raise Malformed("a tool's name was expected")
    yield reader.begin(name.strip())
    yield from paired(reader, PAIRS, Members(reader, name.strip()), marker)


FAMILY = Family(("<tool_call>",), grammar, marks=PAIRS.marks, order=1)
