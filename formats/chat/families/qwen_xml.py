"""<tool_call> around <function=NAME> with <parameter=KEY> tags: Qwen3-Coder, Qwen 3.5, Nemotron 3, Seed."""

from __future__ import annotations

from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Malformed, Steps
from satchel.formats.chat.tagged import Tags, tagged

ENDS = {"<tool_call>": "</tool_call>", "<seed:tool_call>": "</seed:tool_call>"}
TAGS = Tags(">", "<parameter=", (">",), "</parameter>", "</function>")


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    # The model sometimes omits the outer tag.
    if begin in ENDS and (yield from reader.at("<function=")) is None:
        raise Malformed("<function= was expected")
    yield from tagged(reader, TAGS)
    yield from reader.at(ENDS.get(begin, "</tool_call>"))


FAMILY = Family((*ENDS, "<function="), grammar, marks=tuple(ENDS.values()))
