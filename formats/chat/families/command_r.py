"""<|START_ACTION|> around a list of {"tool_name": ..., "parameters": ...}: Command R7B, Command A."""

from __future__ import annotations

from satchel.formats.chat.calls import Keys, calls
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Steps

# The model numbers ids from 0 in each message, so they are not unique: calls get new ids.
KEYS = Keys(("tool_name", "name"), ("parameters", "arguments"), ignored=("type", "tool_call_id"))


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    yield from calls(reader, KEYS)
    yield from reader.at("<|END_ACTION|>")


FAMILY = Family(("<|START_ACTION|>",), grammar, marks=("<|END_ACTION|>",))
