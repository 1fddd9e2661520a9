""">>>all before text and >>>NAME before a call's arguments: Functionary 3.2."""

from __future__ import annotations

from satchel.formats.chat.calls import NAME_MOST, named
from satchel.formats.chat.events import Content
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Malformed, Steps

MARK = ">>>"


def whole(reader: AnswerReader, opening: str) -> Steps[None]:
    """Parses a complete answer. The prompt ends after the first mark, or inside a text where `opening` is
    set.
    """
    if opening:
        if (yield from reader.until((MARK,), Content)) is None:
            return
    else:
        yield from reader.at(MARK)
    more: str | None = MARK
    while more is not None:
        reader.start(MARK)
        try:
            yield from _part(reader)
        except Malformed as error:
            yield from reader.broken(error)
        more = yield from reader.until((MARK,), Content)


def _part(reader: AnswerReader) -> Steps[None]:
    name, marker = yield from reader.text_until("\n", most=NAME_MOST)
    if marker is None and not name:
        reader.start()
        raise Malformed
    if marker is None:
        raise Malformed
    if name.strip() == "all":
        reader.start()
        return
    yield from named(reader, name.strip())


def prefill(reasoning: str | None, content: str) -> str:
    return f"all\n{content}"


FAMILY = Family((MARK,), whole=whole, prefill=prefill, order=3)
