"""GLM's tags with ":opensource" in each, a marker after the name and one around all calls: Hunyuan 3."""

from __future__ import annotations

from satchel.formats.chat.calls import NAME_MOST
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Malformed, Steps
from satchel.formats.chat.tagged import Members, Pairs, paired

ALL, ALL_END = "<tool_calls:opensource>", "</tool_calls:opensource>"
ONE, SEP = "<tool_call:opensource>", "<tool_sep:opensource>"
PAIRS = Pairs(
    "<arg_key:opensource>",
    "</arg_key:opensource>",
    "<arg_value:opensource>",
    "</arg_value:opensource>",
    "</tool_call:opensource>",
)


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    if (yield from reader.at(ONE)) is None:
        raise Malformed(f"{ONE} was expected")
    while True:
        name, marker = yield from reader.text_until(SEP, most=NAME_MOST)
        if marker is None:
            raise Malformed(f"{SEP} was expected")
        yield reader.begin(name.strip())
        marker = yield from reader.at(PAIRS.key, PAIRS.end)
        yield from paired(reader, PAIRS, Members(reader, name.strip()), marker)
        if (yield from reader.at(ONE, ALL_END)) != ONE:
            return


FAMILY = Family((ALL,), grammar, marks=(ALL_END, ONE, SEP, *PAIRS.marks))
