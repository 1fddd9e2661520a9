"""name(key="value") as Python has it: in a list (LFM2, Llama 3.2 and 4, ToolACE), or a line each between
markers (OLMo 3, Gemma 3's tool_code).
"""

from __future__ import annotations

from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import Reader, Steps
from satchel.formats.chat.tagged import python_listed

# Openings of lists, and of lines, with their ends.
LISTS = {"<|tool_call_start|>": "<|tool_call_end|>", "<|python_start|>": "<|python_end|>"}
LINES = {"<function_calls>": "</function_calls>", "```tool_code": "```"}
ENDS = LISTS | LINES


def grammar(reader: Reader, begin: str) -> Steps[None]:
    yield from python_listed(reader, known=not begin)
    if not begin:
        return
    while (yield from reader.at(ENDS[begin])) is None:
        if begin in LISTS or not (yield from reader.skip()):
            return
        yield from python_listed(reader)


FAMILY = Family(tuple(ENDS), grammar, marks=tuple(ENDS.values()), bare=True, opens="[", order=6)
