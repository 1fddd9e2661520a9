"""Messages by tokens: <|think|>, <|content|> and <|tool_calls|>, whose calls have an id: Solar Open."""

from __future__ import annotations

from satchel.formats.chat.calls import NAME_MOST, named
from satchel.formats.chat.events import Content, Reasoning
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Malformed, Steps

BEGIN, END, ALL_END = "<|begin|>", "<|end|>", "<|calls|>"
THINK, CONTENT, ALL = "<|think|>", "<|content|>", "<|tool_calls|>"
ONE, NAME, ARGS = "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>"
ONE_END = "<|tool_call:end|>"
BORDERS = (BEGIN, END, ALL_END, THINK, CONTENT, ALL)
HEADER_MOST = 100


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    if (yield from reader.at(ONE)) is None:
        raise Malformed(f"{ONE} was expected")
    while True:
        # The model's ids are unique within one message only: calls get new ids.
        _, marker = yield from reader.text_until(NAME, most=NAME_MOST)
        name, marker = yield from reader.text_until(ARGS, most=NAME_MOST)
        if marker is None:
            raise Malformed("it is not complete")
        yield from named(reader, name.strip())
        yield from reader.at(ONE_END)
        reader.start()
        if (yield from reader.at(ONE, ALL_END)) != ONE:
            return


def whole(reader: AnswerReader, opening: str) -> Steps[None]:
    """Parses a complete answer, message by message; text outside of messages is content. opening: the kind of
    message that the prompt began.
    """
    border = THINK if opening == "reasoning" else CONTENT
    while border:
        if border == ALL:
            reader.start(ALL)
            try:
                yield from grammar(reader, ALL)
            except Malformed as error:
                yield from reader.broken(error)
        elif border == BEGIN:
            reader.start(BEGIN)
            try:
                _, found = yield from reader.text_until(THINK, CONTENT, ALL, END, most=HEADER_MOST)
            except Malformed:  # no header is so long: it is text
                yield from reader.broken(Malformed())
            else:
                border = found or ""
                continue
        found = yield from reader.until(BORDERS, Reasoning if border == THINK else Content)
        border = found or ""


def prefill(reasoning: str | None, content: str) -> str:
    """The text after <|begin|>assistant for an answer that continues a given text."""
    thought = "" if reasoning is None else f"{THINK}{reasoning}"
    if reasoning and not content:
        return thought
    between = f"{END}{BEGIN}assistant" if thought else ""
    return f"{thought}{between}" + (f"{CONTENT}{content}" if content else "")


FAMILY = Family(
    (ALL,),
    grammar,
    marks=(*BORDERS[:-1], ONE, NAME, ARGS, ONE_END),
    whole=whole,
    prefill=prefill,
    thought=(THINK, END, f"{BEGIN}assistant"),
)
