"""{"tool_calls": [...]} as the whole answer: the format that formats/template/spoken.py asks for."""

from __future__ import annotations

from satchel.formats.chat.calls import Keys, bare
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Steps

KEYS = Keys(wrappers=("tool_calls",), ignored=("type", "id"), known=True)


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    fence = yield from reader.at("```json", "```")
    yield from bare(reader, KEYS)
    if fence:
        yield from reader.at("```")


FAMILY = Family((), grammar, bare=True, opens="{`", order=9)
