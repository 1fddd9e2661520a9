"""Parses tool calls written as JSON: objects with name and arguments, or a name before the arguments.

Arguments are streamed as written. A call ends only when its arguments are one complete JSON object.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from satchel.formats.chat.events import Note
from satchel.formats.chat.reader import AnswerReader, Malformed, Steps
from satchel.formats.chat.walker import Walker

NAME_MOST = 256  # characters of a tool's name


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a call's JSON object in one format."""

    names: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    ids: tuple[str, ...] = ()  # keys of the id that the model writes; the call's events wait for it
    wrappers: tuple[str, ...] = ()  # keys of a list of calls
    ignored: tuple[str, ...] = ("type",)
    known: bool = False  # an object counts as a call only if it names a given tool; otherwise it is text


def value(reader: AnswerReader, stream: bool = False) -> Steps[str]:
    """Reads the next JSON value and returns its text. stream: also emits it as arguments."""
    if not (yield from reader.skip()):
        raise Malformed("it is not complete")
    walker, taken = Walker(), list[str]()
    while not walker.done:
        if not (yield from reader.more()):
            walker.close()
        else:
            text, at = reader.rest()
            piece = reader.take(walker.feed(text, at) - at)
            taken.append(piece)
            if stream and piece:
                yield reader.arguments(piece)
        if walker.error:
            raise Malformed(walker.error)
    return "".join(taken)


def string(reader: AnswerReader) -> Steps[str]:
    """Reads the next JSON string and returns it decoded."""
    raw = yield from value(reader)
    if not raw.startswith('"'):
        raise Malformed(f"a string was expected, {raw[:40]!r} came")
    return str(json.loads(raw))


def arguments(reader: AnswerReader) -> Steps[None]:
    """Reads arguments: an object, which is streamed, or a string that contains one, or null."""
    if not (yield from reader.skip()):
        raise Malformed("it is not complete")
    if reader.peek() == "{":
        yield from value(reader, stream=True)
        return
    yield reader.arguments(as_object((yield from value(reader))))


def as_object(raw: str) -> str:
    """The text of an object, from arguments that were read whole."""
    if raw.startswith('"'):
        raw = str(json.loads(raw)) or "{}"
        walker = Walker()
        end = walker.feed(raw)
        walker.close()
        if walker.error or raw[end:].strip():
            raise Malformed(f"its arguments are text that is no JSON: {walker.error or 'more follows'}")
    if raw == "null":
        return "{}"
    if not raw.lstrip().startswith("{"):
        raise Malformed(f"its arguments are no object: {raw[:40]!r}")
    return raw


def calls(reader: AnswerReader, keys: Keys) -> Steps[None]:
    """Reads one call's object, or a list of them."""
    if not (yield from reader.skip()):
        raise Malformed("it is not complete")
    if reader.peek() != "[":
        yield from call(reader, keys)
        return
    reader.take(1)
    yield from listed(reader, keys)


def listed(reader: AnswerReader, keys: Keys) -> Steps[None]:
    """Reads the calls of a list after its opening bracket."""
    if (yield from reader.skip()) and reader.peek() == "]":
        raise Malformed("the list of calls is empty")
    while True:
        yield from call(reader, keys)
        if not (yield from reader.skip()) or reader.peek() != ",":
            break
        reader.take(1)
    if (yield from reader.skip()) and reader.peek() == "]":
        reader.take(1)
        reader.start()
        return
    yield Note("the list of tool calls was not closed")


@dataclass(slots=True)
class _Call:
    name: str = ""
    id: str = ""
    arguments: str | None = None
    begun: bool = False
    wrapped: bool = False


def call(reader: AnswerReader, keys: Keys) -> Steps[None]:
    """Reads one call's object. The call begins as soon as its name is known, or at its end where it can have
    an id.
    """
    found = _Call()
    if keys.known and (yield from reader.skip()) and reader.peek() != "{":
        raise Malformed
    yield from reader.expect("{")
    yield from _members(reader, keys, found)
    if found.wrapped and not found.name:
        return
    if not found.begun:
        _check(reader, keys, found.name)
        yield reader.begin(found.name, found.id)
        yield reader.arguments(as_object(found.arguments or "null"))
    yield reader.end()


def _members(reader: AnswerReader, keys: Keys, found: _Call) -> Steps[None]:
    first = True
    while True:
        if not (yield from reader.skip()):
            raise Malformed("it is not complete")
        if reader.peek() == "}":
            reader.take(1)
            return
        if not first:
            yield from reader.expect(",")
        key = yield from string(reader)
        yield from reader.expect(":")
        yield from _member(reader, keys, found, key)
        first = False


def _member(reader: AnswerReader, keys: Keys, found: _Call, key: str) -> Steps[None]:
    if key in keys.names and not found.name:
        found.name = yield from string(reader)
        _check(reader, keys, found.name)
    elif key in keys.arguments and found.arguments is None:
        if found.name and not keys.ids:
            yield reader.begin(found.name)
            found.begun, found.arguments = True, ""
            yield from arguments(reader)
        else:
            found.arguments = yield from value(reader)
    elif key in keys.ids:
        raw = yield from value(reader)
        found.id = str(json.loads(raw)) if raw[:1] in '"0123456789' else ""
    elif key in keys.wrappers and not found.name:
        yield from reader.expect("[")
        yield from listed(reader, keys)
        found.wrapped = True
    elif key == "function" and not found.name:
        yield from _function(reader, keys, found)
    else:
        yield from _other(reader, keys, found, key)


def _function(reader: AnswerReader, keys: Keys, found: _Call) -> Steps[None]:
    """Reads the value of "function": an object with name and arguments, or the name itself."""
    if (yield from reader.skip()) and reader.peek() == "{":
        reader.take(1)
        yield from _members(reader, keys, found)
        return
    found.name = yield from string(reader)
    _check(reader, keys, found.name)


def _other(reader: AnswerReader, keys: Keys, found: _Call, key: str) -> Steps[None]:
    if keys.known and not found.name and not found.wrapped and key not in keys.ignored:
        raise Malformed
    yield from value(reader)
    if key not in keys.ignored:
        yield Note(f"a tool call's member {key[:40]!r} has no meaning and was left out")


def _check(reader: AnswerReader, keys: Keys, name: str) -> None:
    if not name or len(name) > NAME_MOST:
        raise Malformed(f"a name of 1 to {NAME_MOST} characters was expected, {len(name)} came")
    if keys.known and name not in reader.tools:
        raise Malformed


def bare(reader: AnswerReader, keys: Keys, separators: str = ";,") -> Steps[None]:
    """Reads calls without a marker: one or more objects that name a given tool."""
    first = True
    while True:
        if first or ((yield from reader.skip()) and reader.peek() in "{["):
            yield from calls(reader, keys)
        else:
            return
        first = False
        if (yield from reader.skip()) and reader.peek() in separators:
            reader.start()
            reader.take(1)
            if not (yield from reader.skip()) or reader.peek() not in "{[":
                raise Malformed  # the separator becomes text


def named(reader: AnswerReader, name: str, made: str = "") -> Steps[None]:
    """Reads the arguments of a call whose name is known. made: the id that the model wrote."""
    yield reader.begin(name, made)
    yield from arguments(reader)
    yield reader.end()


def dumped(found: Any) -> str:
    """The JSON text of arguments that the model wrote in another syntax."""
    return json.dumps(found, ensure_ascii=False)
