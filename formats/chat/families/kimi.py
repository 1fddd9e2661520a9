"""<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}: Kimi K2."""

from __future__ import annotations

from satchel.formats.chat.calls import NAME_MOST, named
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Malformed, Steps

ALL, ALL_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
ONE, ARGS, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    if (yield from reader.at(ONE)) is None:
        raise Malformed(f"{ONE} was expected")
    while True:
        made, marker = yield from reader.text_until(ARGS, most=NAME_MOST)
        if marker is None:
            raise Malformed("it is not complete")
        made = made.strip()
        yield from named(reader, made.rpartition(":")[0].removeprefix("functions.") or made, made)
        yield from reader.at(END)
        reader.start()
        if (yield from reader.at(ONE, ALL_END)) != ONE:
            return


FAMILY = Family((ALL,), grammar, marks=(ALL_END, ONE, ARGS, END))
