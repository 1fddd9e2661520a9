"""<tool_call> around {"name": ..., "arguments": ...}: Hermes, Qwen 2.5 and 3, Granite 4, SmolLM3."""

from __future__ import annotations

from satchel.formats.chat.calls import Keys, calls
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Steps

KEYS = Keys()


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    yield from calls(reader, KEYS)
    yield from reader.at("</tool_call>")


FAMILY = Family(("<tool_call>",), grammar, marks=("</tool_call>",))
