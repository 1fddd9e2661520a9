"""call:NAME{key:TEXT,key:3} between tokens, with a token of its own around texts: Gemma 4, FunctionGemma."""

from __future__ import annotations

from satchel.formats.chat.calls import NAME_MOST, dumped, string
from satchel.formats.chat.family import Family
from satchel.formats.chat.reader import AnswerReader, Malformed, Steps
from satchel.formats.chat.tagged import NESTING, Members, as_json

# A call's opening: its end, and the quote around strings.
FORMS = {
    "<|tool_call>": ("<tool_call|>", '<|"|>'),
    "<start_function_call>": ("<end_function_call>", "<escape>"),
}
BORDERS = ",{}[]"


def grammar(reader: AnswerReader, begin: str) -> Steps[None]:
    end, quote = FORMS[begin]
    lead, brace = yield from reader.text_until("{", most=NAME_MOST)
    if brace is None or not lead.strip().startswith("call:"):
        raise Malformed("call:NAME{ was expected")
    name = lead.strip().removeprefix("call:").strip()
    yield reader.begin(name)
    members = Members(reader, name)
    while (key := (yield from _key(reader, quote))) is not None:
        value = yield from _value(reader, quote, members.kinds(key), 0)
        yield reader.arguments(members.put(key, value))
        yield from _comma(reader, "}")
    yield reader.arguments(members.end())
    yield reader.end()
    yield from reader.at(end)


def _key(reader: AnswerReader, quote: str) -> Steps[str | None]:
    """Reads the next key and its colon; None at the object's end."""
    key = yield from _text(reader, quote)
    if key is None:
        if not (yield from reader.skip()):
            raise Malformed("it is not complete")
        if reader.peek() == "}":
            reader.take(1)
            return None
        if reader.peek() != '"':
            name, colon = yield from reader.text_until(":", most=NAME_MOST)
            if colon is None:
                raise Malformed("it is not complete")
            return name.strip()
        key = yield from string(reader)
    yield from reader.expect(":")
    return key


def _text(reader: AnswerReader, quote: str) -> Steps[str | None]:
    """Reads a string between two quotes; None where none begins."""
    if (yield from reader.at(quote)) is None:
        return None
    text, closed = yield from reader.text_until(quote)
    if closed is None:
        raise Malformed("it is not complete")
    return text


def _value(reader: AnswerReader, quote: str, kinds: tuple[str, ...], depth: int) -> Steps[str]:
    """Reads a value and returns its JSON. kinds: the types that its schema allows, for a bare word."""
    if depth > NESTING:
        raise Malformed(f"it nests deeper than {NESTING}")
    text = yield from _text(reader, quote)
    if text is not None:
        return dumped(text)
    if not (yield from reader.skip()):
        raise Malformed("it is not complete")
    if reader.peek() == '"':
        return dumped((yield from string(reader)))
    if reader.peek() == "{":
        reader.take(1)
        return (yield from _object(reader, quote, depth + 1))
    if reader.peek() == "[":
        reader.take(1)
        return (yield from _list(reader, quote, depth + 1))
    return as_json((yield from _word(reader)), kinds)


def _object(reader: AnswerReader, quote: str, depth: int) -> Steps[str]:
    parts: list[str] = []
    while (key := (yield from _key(reader, quote))) is not None:
        value = yield from _value(reader, quote, (), depth)
        parts.append(f"{dumped(key)}: {value}")
        yield from _comma(reader, "}")
    return "{" + ", ".join(parts) + "}"


def _list(reader: AnswerReader, quote: str, depth: int) -> Steps[str]:
    parts: list[str] = []
    while not (yield from reader.skip()) or reader.peek() != "]":
        parts.append((yield from _value(reader, quote, (), depth)))
        yield from _comma(reader, "]")
    reader.take(1)
    return "[" + ", ".join(parts) + "]"


def _comma(reader: AnswerReader, closing: str) -> Steps[None]:
    """Skips the comma between two values; leaves the closing character."""
    if not (yield from reader.skip()):
        raise Malformed("it is not complete")
    if reader.peek() == ",":
        reader.take(1)
    elif reader.peek() != closing:
        raise Malformed(f"',' or {closing!r} was expected, {reader.peek()!r} came")


def _word(reader: AnswerReader) -> Steps[str]:
    """Reads a number, a word or an unquoted string up to the end of the value."""
    taken: list[str] = []
    while (yield from reader.more()):
        text, at = reader.rest()
        end = next((i for i in range(at, len(text)) if text[i] in BORDERS), len(text))
        taken.append(reader.take(end - at))
        if end < len(text):
            break
    word = "".join(taken).strip()
    if not word:
        raise Malformed("a value was expected")
    return word


FAMILY = Family(tuple(FORMS), grammar, marks=tuple(mark for form in FORMS.values() for mark in form))
