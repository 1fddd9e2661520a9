"""Channels of gpt-oss: <|channel|>analysis is thinking, final is the answer, to=functions.NAME is a call."""

from __future__ import annotations

from satchel.formats.chat.calls import arguments
from satchel.formats.chat.events import Content, Note, Reasoning
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Malformed, Steps

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
BORDERS = (START, CHANNEL, *ENDS)
HEADER_MOST = 1000


def whole(reader: AnswerReader, opening: str) -> Steps[None]:
    """Parses a complete answer, message by message. opening: "reasoning" or "content" where the prompt began
    one.
    """
    border: str | None = ""
    if opening:
        border = yield from reader.until(BORDERS, Reasoning if opening == "reasoning" else Content)
    while border is not None:
        reader.start(border if border in (START, CHANNEL) else "")
        try:
            border = yield from _message(reader, border)
        except Malformed as error:
            yield from reader.broken(error)
            border = yield from reader.until(BORDERS, Content)


def _message(reader: AnswerReader, border: str) -> Steps[str | None]:
    header, found = yield from _header(reader, border)
    if found in ENDS:
        return found
    if found is None:
        if header.strip() in ("", "assistant"):
            return None
        raise Malformed
    to = next((word[3:] for word in header.split() if word.startswith("to=")), "")
    if to.startswith("functions."):
        name = to.removeprefix("functions.").partition(CHANNEL)[0]
        return (yield from _call(reader, name))
    if to:
        yield Note(f"a message to {to[:40]!r} stands in the text: no such tool was given")
    if f"{CHANNEL}analysis" in header and not to:
        return (yield from reader.until(BORDERS, Reasoning))
    end = yield from reader.until(BORDERS, Content)
    if end is not None and f"{CHANNEL}final" not in header:
        yield Content("\n\n")  # before the answer that follows a preamble
    return end


def _header(reader: AnswerReader, border: str) -> Steps[tuple[str, str | None]]:
    """Reads a message's header up to <|message|>, with its markers as text."""
    header = border
    while True:
        text, found = yield from reader.text_until(MESSAGE, CONSTRAIN, *BORDERS, most=HEADER_MOST)
        header += text
        if found in (CHANNEL, CONSTRAIN, START):
            header += f" {found}" if found == CONSTRAIN else found
        else:
            return header, found


def _call(reader: AnswerReader, name: str) -> Steps[str | None]:
    yield reader.begin(name)
    if (yield from reader.at(*BORDERS)):
        yield reader.arguments("{}")
        yield reader.end()
        return ""
    yield from arguments(reader)
    yield reader.end()
    return (yield from reader.until(BORDERS, Content))


def prefill(reasoning: str | None, content: str) -> str:
    """The text after <|start|>assistant for an answer that continues a given text."""
    thought = "" if reasoning is None else f"{CHANNEL}analysis{MESSAGE}{reasoning}"
    if reasoning and not content:
        return thought
    between = f"<|end|>{START}assistant" if thought else ""
    return f"{thought}{between}" + (f"{CHANNEL}final{MESSAGE}{content}" if content else "")


FAMILY = Family(
    (START, CHANNEL),
    marks=(MESSAGE, CONSTRAIN, *ENDS),
    whole=whole,
    prefill=prefill,
    thought=(f"{CHANNEL}analysis{MESSAGE}", "<|end|>", f"{START}assistant"),
)
