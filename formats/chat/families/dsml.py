"""<invoke name="..."> with <parameter name="..."> tags: DeepSeek V3.2 and V4, MiniMax M2."""

from __future__ import annotations

from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Malformed, Steps
from satchel.formats.chat.tagged import Tags, tagged

# The section's opening and end, and the prefix of each tag's name.
FORMS = {
    "<｜DSML｜function_calls>": ("</｜DSML｜function_calls>", "｜DSML｜"),
    "<｜DSML｜tool_calls>": ("</｜DSML｜tool_calls>", "｜DSML｜"),
    "<minimax:tool_call>": ("</minimax:tool_call>", ""),
    "<function_calls>": ("</function_calls>", ""),
}


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    end, prefix = FORMS[begin]
    tags = Tags(
        '">',
        f'<{prefix}parameter name="',
        ('">', '" string="true">', '" string="false">'),
        f"</{prefix}parameter>",
        f"</{prefix}invoke>",
    )
    opening = f'<{prefix}invoke name="'
    marker = yield from reader.at(opening)
    if marker is None:
        raise Malformed(f"{opening} was expected")
    while marker == opening:
        yield from tagged(reader, tags)
        marker = yield from reader.at(opening, end)


FAMILY = Family(tuple(FORMS), grammar, marks=tuple(end for end, _ in FORMS.values()))
