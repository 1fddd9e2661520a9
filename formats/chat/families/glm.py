"""<tool_call>NAME with <arg_key> and <arg_value> tags: GLM 4.5 and later."""

from __future__ import annotations

from satchel.formats.chat.calls import NAME_MOST
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import Malformed, Reader, Steps
from satchel.formats.chat.tagged import Members

KEY, KEY_END, VALUE, VALUE_END, END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"


def grammar(reader: Reader, begin: str) -> Steps[None]:
    name, marker = yield from reader.text_until(KEY, END, most=NAME_MOST)
    if "{" in name or marker is None:
        raise Malformed("a tool's name was expected")
    yield reader.begin(name.strip())
    members = Members(reader, name.strip())
    while marker == KEY:
        key, closed = yield from reader.text_until(KEY_END, most=NAME_MOST)
        if closed is None or (yield from reader.at(VALUE)) is None:
            raise Malformed(f"{VALUE} was expected")
        text, closed = yield from reader.text_until(VALUE_END)
        if closed is None:
            raise Malformed("it is not complete")
        yield reader.arguments(members.add(key.strip(), text))
        marker = yield from reader.at(KEY, END)
    if marker is None:
        raise Malformed(f"{END} was expected")
    yield reader.arguments(members.end())
    yield reader.end()


FAMILY = Family(("<tool_call>",), grammar, marks=(KEY, KEY_END, VALUE, VALUE_END, END), order=1)
