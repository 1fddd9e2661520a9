"""name(key="value") in Python syntax: in a list (LFM2, Llama 3.2 and 4, ToolACE), or one call per line
between markers (OLMo 3, Gemma 3's tool_code) or in fenced code between them (MiniCPM 3 and 4).
"""

from __future__ import annotations

from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Steps
from satchel.formats.chat.tagged import python_listed

# Markers that open a list, and a group of lines, with their closing markers.
LISTS = {"<|tool_call_start|>": "<|tool_call_end|>", "<|python_start|>": "<|python_end|>"}
LINES = {"<function_calls>": "</function_calls>", "```tool_code": "```"}
ENDS = LISTS | LINES
FENCE, FENCE_END = "```python", "```"


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    fenced = begin in LISTS and (yield from reader.at(FENCE)) is not None
    yield from python_listed(reader, known=not begin)
    if not begin:
        return
    while (yield from reader.at(FENCE_END if fenced else ENDS[begin])) is None:
        if (begin in LISTS and not fenced) or not (yield from reader.skip()):
            return
        yield from python_listed(reader)
    if fenced:
        yield from reader.at(ENDS[begin])


FAMILY = Family(
    tuple(ENDS), grammar, marks=tuple(ENDS.values()), bare=True, opens="[", order=6, tells=(FENCE,)
)
