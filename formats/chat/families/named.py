"""NAME, a line end and {...} as the whole answer: GLM 4 (0414 and chatglm)."""

from __future__ import annotations

from satchel.formats.chat.calls import named
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Malformed, Steps

AGAIN = "<|assistant|>"


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    more: str | None = AGAIN
    while more:
        name = yield from reader.at(*(f"{tool}\n" for tool in reader.tools))
        if name is None:
            raise Malformed  # ordinary text that begins like a name
        yield from named(reader, name.strip())
        more = yield from reader.at(AGAIN)


FAMILY = Family((), grammar, marks=(AGAIN,), bare=True, opens="", order=7)
