"""A marker before one list of objects: Granite 3, Phi-4-mini, Nemotron, xLAM, Hunyuan, Firefunction."""

from __future__ import annotations

from satchel.formats.chat.calls import Keys, calls
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import Reader, Steps

ENDS = {
    "<|tool_call|>": "<|/tool_call|>",
    "<TOOLCALL>": "</TOOLCALL>",
    "<tool_calls>": "</tool_calls>",
    "<start_function_call>": "<end_function_call>",
    "functools": "",
}
KEYS = Keys()


def grammar(reader: Reader, begin: str) -> Steps[None]:
    yield from calls(reader, KEYS)
    if ENDS[begin]:
        yield from reader.at(ENDS[begin])


FAMILY = Family(tuple(ENDS), grammar, marks=tuple(end for end in ENDS.values() if end), order=1)
