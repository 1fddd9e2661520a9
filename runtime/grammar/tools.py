"""Grammars that force a call of one of the tools, in the tool-call format of a model family.

Markers are special tokens if the vocabulary has them, and plain text otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from satchel.errors import RequestError
from satchel.formats.chat import ChatParser, Collected, Style
from satchel.formats.tokenizer import Kind, Tokenizer
from satchel.runtime.grammar.arguments import Arguments, shown
from satchel.runtime.grammar.check import Check, parse_exact
from satchel.runtime.grammar.references import checked_schema
from satchel.runtime.grammar.schema import describe
from satchel.runtime.grammar.source import GrammarSource
from satchel.runtime.grammar.spec import ToolCallGrammar, ToolSchema, dump
from satchel.runtime.grammar.styles import JsonArguments, ToolCallFormat, tool_call_format
from satchel.runtime.grammar.validate import Validator

MAX_TOOLS = 512
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
MARKER = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\])")
BARS = re.compile("(｜[^｜]+｜)")  # a token inside a longer marker
WHAT = "tools"


def read_tools(spec: ToolCallGrammar, tokenizer: Tokenizer) -> GrammarSource:
    """The grammar of a tool call. Raises RequestError for an unknown style, or a tool with an invalid name or
    a refused schema.
    """
    format = tool_call_format(spec.style, spec.begin)
    if spec.parallel and not format.several:
        raise RequestError(f"{WHAT}: the style {spec.style!r} has one call per answer: omit parallel")
    schemas = _read_schemas(list(spec.tools))
    writer = LarkWriter(tokenizer)
    lines: list[str] = []
    for i, (name, schema) in enumerate(schemas.items()):
        called = writer.text(format.before + name) + (' ":" /0|[1-9][0-9]{0,3}/' if format.numbered else "")
        given = Arguments(writer, format, f"{WHAT}: tool {name!r}", f"c{i}", lines).rule(name, schema)
        lines.append(f"c{i}: {called} {writer.text(format.middle)} {given} {writer.text(format.after)}")
    more = f" ({writer.text(format.separator)} call)*" if spec.parallel else ""
    head = f"start: {writer.text(format.open)} call{more} {writer.text(format.close)}"
    choice = "call: " + " | ".join(f"c{i}" for i in range(len(schemas)))
    from llguidance import LLMatcher

    grammar = LLMatcher.grammar_from_lark("\n".join([head, choice, *lines]))
    read = (
        _check
        if isinstance(format.arguments, JsonArguments)
        else partial(_read_back, spec.style, writer.hides)
    )
    return GrammarSource(WHAT, grammar, read(format, schemas), tuple(writer.tokens))


def _read_schemas(tools: list[ToolSchema]) -> dict[str, dict[str, Any]]:
    if not 0 < len(tools) <= MAX_TOOLS:
        raise RequestError(f"{WHAT}: expected 1 to {MAX_TOOLS} tools, got {len(tools):,}")
    found: dict[str, dict[str, Any]] = {}
    for i, tool in enumerate(tools):
        if not isinstance(tool.name, str) or not NAME.fullmatch(tool.name):
            raise RequestError(
                f"{WHAT} at #/{i}/name: expected letters, digits, _ . and - (128 at most), "
                f"got {describe(tool.name)}"
            )
        if tool.name in found:
            raise RequestError(f"{WHAT} at #/{i}/name: {tool.name!r} is listed twice")
        found[tool.name] = _parameters(tool, f"tool {tool.name!r}: its parameters", f"#/{i}/parameters")
    return found


def _parameters(tool: ToolSchema, what: str, pointer: str) -> dict[str, Any]:
    schema = tool.parameters
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise RequestError(f"{WHAT} at {pointer}: expected the schema of an object, got {describe(schema)}")
    checked, _ = checked_schema(dump({"type": "object"} | dict(schema), what), what)
    return dict(checked)


class LarkWriter:
    """Writes texts as Lark source, with markers as special tokens where the vocabulary has them, and records
    those tokens' ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._vocab = tokenizer.vocab
        self.tokens: list[int] = []

    def text(self, text: str) -> str:
        return shown(self.pieces(text))

    def pieces(self, text: str) -> list[str | int]:
        """The text split into parts; ids stand for special tokens."""
        found: list[str | int] = []
        for piece in filter(None, MARKER.split(text)):
            inner = filter(None, BARS.split(piece)) if self._token(piece) is None else [piece]
            found += [part if (token := self._token(part)) is None else token for part in inner]
        self.tokens += [part for part in found if isinstance(part, int)]
        return found

    def _token(self, piece: str) -> int | None:
        token = self._vocab.index.get(piece)
        if token is None or self._vocab.types[token] not in (Kind.CONTROL, Kind.USER_DEFINED):
            return None
        return token

    @property
    def hides(self) -> bool:
        """Whether some of these tokens are not part of an answer's text."""
        return any(self._vocab.types[token] == Kind.CONTROL for token in self.tokens)


def _read_back(style: str, hides: bool, format: ToolCallFormat, schemas: dict[str, dict[str, Any]]) -> Check:
    """Check for calls that are not JSON: the answer's parser reads the call, and the arguments are
    validated.
    """
    tools = [{"name": name, "parameters": schema} for name, schema in schemas.items()]
    validators = {name: Validator(schema) for name, schema in schemas.items()}

    def check(text: str) -> str:
        parser = ChatParser(Style(family=style), tools=tools)
        found = Collected().add_all([*parser.feed(text), *parser.finish()])
        calls = [call for call in found.tool_calls if call.name in schemas]
        if found.notes or found.content.strip() or not calls or len(calls) < len(found.tool_calls):
            # Without its hidden markers the text cannot be parsed: only the masks guarantee it.
            return "" if hides else f"no tool call: {found.notes[0] if found.notes else 'it is text'}"
        return next(filter(None, (_wrong(validators[call.name], call) for call in calls)), "")

    return check


def _wrong(validator: Validator, call: Any) -> str:
    try:
        wrong = validator.error(parse_exact(call.arguments))
    except (ValueError, RecursionError) as error:
        return f"arguments of {call.name!r}: {error}"
    return f"arguments of {call.name!r} {wrong}" if wrong else ""


def _check(format: ToolCallFormat, schemas: dict[str, dict[str, Any]]) -> Check:
    validators = {name: Validator(schema) for name, schema in schemas.items()}

    def check(text: str) -> str:
        reader = _CallReader(text, format, validators)
        try:
            return reader.read()
        except ValueError as error:
            return f"no tool call at character {reader.at}: {error}"
        except RecursionError:
            return "the arguments are nested too deeply to be checked"

    return check


class _CallReader:
    """Parses calls from a text in which markers may be hidden."""

    def __init__(self, text: str, format: ToolCallFormat, validators: Mapping[str, Validator]) -> None:
        self.text, self.format, self.validators, self.at = text, format, validators, 0
        self.names = sorted(validators, key=len, reverse=True)

    def read(self) -> str:
        self._expect(self.format.open)
        while True:
            if wrong := self._call():
                return wrong
            if self._ends():
                return ""
            self._expect(self.format.separator)

    def _ends(self) -> bool:
        rest = self.text[self.at :]
        hidden = "".join(piece for piece in MARKER.split(self.format.close) if not MARKER.fullmatch(piece))
        return rest in (self.format.close, hidden)

    def _call(self) -> str:
        self._expect(self.format.before)
        name = next((name for name in self.names if self.text.startswith(name, self.at)), None)
        if name is None:
            raise ValueError("a tool's name was expected")
        self.at += len(name)
        if self.format.numbered:
            self._number()
        self._expect(self.format.middle)
        end = json.JSONDecoder().raw_decode(self.text, self.at)[1]
        value = parse_exact(self.text[self.at : end])
        self.at = end
        self._expect(self.format.after)
        wrong = self.validators[name].error(value)
        return f"arguments of {name!r} {wrong}" if wrong else ""

    def _number(self) -> None:
        found = re.compile(":[0-9]{1,4}").match(self.text, self.at)
        if found is None:
            raise ValueError("a colon and the call's number were expected")
        self.at = found.end()

    def _expect(self, wanted: str) -> None:
        for piece in MARKER.split(wanted):
            if self.text.startswith(piece, self.at):
                self.at += len(piece)
            elif not MARKER.fullmatch(piece):
                raise ValueError(f"{piece!r} was expected")
