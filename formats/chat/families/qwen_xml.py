"""<tool_call> around <function=NAME> with <parameter=KEY> tags: Qwen3-Coder."""

from __future__ import annotations

from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import Malformed, Reader, Steps
from satchel.formats.chat.tagged import Tags, tagged

TAGS = Tags(">", "<parameter=", (">",), "</parameter>", "</function>")


def grammar(reader: Reader, begin: str) -> Steps[None]:
    # The model sometimes leaves the outer tag out.
    if begin == "<tool_call>" and (yield from reader.at("<function=")) is None:
        raise Malformed("<function= was expected")
    yield from tagged(reader, TAGS)
    yield from reader.at("</tool_call>")


FAMILY = Family(("<tool_call>", "<function="), grammar, marks=("</tool_call>",))
