"""A marker before a list of objects, or objects one after another: Granite, Phi 4 mini, Nemotron, Hunyuan,
MiniMax M1, GigaChat 3.1, InternLM 2, LongCat. Apertus' objects have the tool's name as their only key.
"""

from __future__ import annotations

from satchel.formats.chat.calls import Keys, arguments, calls, string
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Steps

ENDS = {
    "<|tool_call|>": "<|/tool_call|>",
    "<TOOLCALL>": "</TOOLCALL>",
    "<tool_calls>": "</tool_calls>",
    "functools": "",
    "<|function_call|>": "",
    "<|tools_prefix|>": "<|tools_suffix|>",
    "<function_call>": "",
    "<longcat_tool_call>": "</longcat_tool_call>",
    "<|action_start|>": "<|action_end|>",
}
KEYS = Keys()
KEYED = "<|tools_prefix|>"
PLUGIN = "<|plugin|>"  # InternLM's actions are tool calls, or code for an interpreter


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    if begin == KEYED:
        yield from _keyed(reader)
    else:
        yield from reader.at(PLUGIN)
        yield from calls(reader, KEYS)
        while (yield from reader.more()) and (yield from reader.skip()) and reader.peek() == "{":
            yield from calls(reader, KEYS)
    if ENDS[begin]:
        yield from reader.at(ENDS[begin])


def _keyed(reader: AnswerReader) -> Steps[None]:
    """[{"NAME": {...}}, ...]"""
    yield from reader.expect("[")
    while True:
        yield from reader.expect("{")
        name = yield from string(reader)
        yield from reader.expect(":")
        yield reader.begin(name)
        yield from arguments(reader)
        yield from reader.expect("}")
        yield reader.end()
        if not (yield from reader.skip()) or reader.peek() != ",":
            break
        reader.take(1)
    yield from reader.expect("]")
    reader.start()


FAMILY = Family(tuple(ENDS), grammar, marks=(PLUGIN, *(end for end in ENDS.values() if end)), order=1)
