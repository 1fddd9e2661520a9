"""[name(key="value"), ...] between markers (LFM2), or as the whole answer (Llama 4, ToolACE)."""

from __future__ import annotations

from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import Malformed, Reader, Steps
from satchel.formats.chat.tagged import python_calls, pythonic

BEGIN, END = "<|tool_call_start|>", "<|tool_call_end|>"


def grammar(reader: Reader, begin: str) -> Steps[None]:
    try:
        found = python_calls((yield from pythonic(reader)))
    except Malformed as error:
        raise Malformed(error.note if begin else "") from None
    if not found or (not begin and any(name not in reader.tools for name, _ in found)):
        raise Malformed("the list of calls is empty" if begin else "")
    for name, arguments in found:
        yield reader.begin(name)
        yield reader.arguments(arguments)
        yield reader.end()
    if begin:
        yield from reader.at(END)


FAMILY = Family((BEGIN,), grammar, marks=(END,), bare=True, opens="[", order=6)
