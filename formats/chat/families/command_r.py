"""<|START_ACTION|> around a list of {"tool_name": ..., "parameters": ...}: Command R7B, Command A."""

from __future__ import annotations

from satchel.formats.chat.calls import Keys, calls
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Steps

# Ids count from 0 in each message, so they don't tell two messages' calls apart: calls get ids of their own.
KEYS = Keys(("tool_name", "name"), ("parameters", "arguments"), ignored=("type", "tool_call_id"))


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    yield from calls(reader, KEYS)
    yield from reader.at("<|END_ACTION|>")


FAMILY = Family(("<|START_ACTION|>",), grammar, marks=("<|END_ACTION|>",))
