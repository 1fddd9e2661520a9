"""Action: and a fenced list of {"tool_name": ..., "parameters": ...}: Command R and R+, of 2024."""

from __future__ import annotations

from satchel.formats.chat.calls import Keys, calls
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Malformed, Steps

BEGIN, FENCE, FENCE_END = "Action:", "```json", "```"
# An answer without a tool calls directly_answer, which is not a given tool: that stays text.
KEYS = Keys(("tool_name", "name"), ("parameters", "arguments"), known=True)


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    if (yield from reader.at(FENCE)) is None:
        raise Malformed  # the word can occur in any text
    yield from calls(reader, KEYS)
    yield from reader.at(FENCE_END)


FAMILY = Family((BEGIN,), grammar, order=1)
