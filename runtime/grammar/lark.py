"""Reads Lark grammars before llguidance compiles them, and refuses what could allow more than it states.

Tokens by name or number, nested grammars and settings are not supported; an embedded schema is checked like
any other.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from satchel.errors import RequestError
from satchel.runtime.grammar.ambiguity import is_catastrophic
from satchel.runtime.grammar.compile_json import with_settings
from satchel.runtime.grammar.references import check_references
from satchel.runtime.grammar.regex import parse
from satchel.runtime.grammar.schema import read_schema
from satchel.runtime.grammar.tree import (
    MAX_DEPTH,
    MAX_REPEATS,
    OneOf,
    Part,
    Ref,
    Seq,
    Terminal,
    Times,
    check_rules,
)

WHAT = "Lark grammar"
TOKEN = re.compile(
    r"""(?P<blank>[ \t\r\f]+|//[^\n]*|\#[^\n]*)|(?P<line>\n)
    |(?P<string>"(?:[^"\\\n]|\\.)*"i?)|(?P<regex>/(?!/)(?:[^/\\\n]|\\.)+/[imslux]*)
    |(?P<name>[!?]?[A-Za-z_][A-Za-z0-9_]*)|(?P<percent>%[a-z]+)|(?P<bounds>\{\d{1,9}(?:,\d{0,9})?\}|~\d{1,9})
    |(?P<number>\.?-?\d+)|(?P<sign>->|\.\.|[.:|()\[\]?*+=,])""",
    re.X,
)
ATTRIBUTES = {"lazy", "capture"}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


class _LarkReader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.schemas: list[tuple[int, int, Any]] = []  # first character, end, value
        self.tokens = self.read()
        self.i = 0
        self.rules: dict[str, Part] = {}

    def fail(self, message: str, at: int) -> RequestError:
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        return RequestError(f"{WHAT}: line {line}, column {column}: {message}")

    def read(self) -> list[_Token]:
        found: list[_Token] = []
        at = 0
        while at < len(self.text):
            match = TOKEN.match(self.text, at)
            if match is None:
                raise self.fail(f"{self.text[at : at + 12]!r} is not supported", at)
            kind, end = match.lastgroup or "", match.end()
            if kind == "percent" and match[0] == "%json":
                end = self.check_json(end)
            if kind != "blank":
                found.append(_Token(kind, match[0], at))
            at = end
        found.append(_Token("end", "", at))
        return found

    def check_json(self, at: int) -> int:
        at += len(self.text[at:]) - len(self.text[at:].lstrip())
        try:
            schema, end = json.JSONDecoder().raw_decode(self.text, at)
        except (ValueError, RecursionError):
            raise self.fail("expected a JSON schema after %json", at) from None
        check_references(read_schema(schema, f"{WHAT}: %json"), f"{WHAT}: %json")
        self.schemas.append((at, end, schema))
        return end

    def peek(self) -> _Token:
        return self.tokens[self.i]

    def next(self) -> _Token:
        token = self.tokens[self.i]
        self.i = min(self.i + 1, len(self.tokens) - 1)
        return token

    def skip_lines(self) -> None:
        while self.peek().kind == "line":
            self.i += 1

    def grammar(self) -> dict[str, Part]:
        self.skip_lines()
        while self.peek().kind != "end":
            self.statement()
            self.skip_lines()
        return self.rules

    def statement(self) -> None:
        token = self.next()
        if token.kind == "percent":
            self.directive(token)
            return
        if token.kind != "name":
            raise self.fail(f"expected a rule (name: ...), got {token.text!r:.20}", token.at)
        name = token.text.lstrip("!?")
        if self.peek().text == "[":
            self.attributes()
        if self.peek().kind == "number":  # a priority
            self.next()
        colon = self.next()
        if colon.text != ":":
            raise self.fail(f"expected : after the name {name!r:.60}", colon.at)
        if name in self.rules:
            raise self.fail(f"rule {name!r:.60} is defined twice", token.at)
        self.rules[name] = self.alternatives(0)
        if self.peek().kind not in ("line", "end"):
            raise self.fail(f"expected the end of the rule, got {self.peek().text!r:.20}", self.peek().at)

    def directive(self, token: _Token) -> None:
        if token.text == "%ignore":
            self.alternatives(0)
        elif token.text == "%import":
            while self.peek().text == "." or self.peek().kind == "name":
                token = self.next()
            self.rules[token.text] = Terminal("")
        else:
            raise self.fail(f"{token.text} is not supported here", token.at)

    def attributes(self) -> None:
        self.next()
        while (token := self.next()).text != "]":
            if token.text not in (*ATTRIBUTES, ","):
                raise self.fail(f"the attribute {token.text!r:.30} is not supported", token.at)

    def alternatives(self, depth: int) -> Part:
        if depth > MAX_DEPTH:
            raise self.fail(f"over {MAX_DEPTH} nested groups", self.peek().at)
        parts = [self.sequence(depth)]
        while self.goes_on():
            self.skip_lines()
            self.next()
            parts.append(self.sequence(depth))
        return parts[0] if len(parts) == 1 else OneOf(tuple(parts))

    def goes_on(self) -> bool:
        """Whether a | follows, on this line or at the start of the next."""
        at = self.i
        while self.tokens[at].kind == "line":
            at += 1
        return self.tokens[at].text == "|" and self.tokens[at].kind == "sign"

    def sequence(self, depth: int) -> Part:
        parts: list[Part] = []
        while True:
            if depth:
                self.skip_lines()
            token = self.peek()
            if token.kind in ("line", "end") or (token.kind == "sign" and token.text in "|)]"):
                return Seq(tuple(parts))
            if token.text == "->":
                self.next()
                self.next()
                continue
            parts.append(self.repeated(self.item(depth)))

    def item(self, depth: int) -> Part:
        token = self.next()
        if token.kind == "string":
            return self.string(token)
        if token.kind == "regex":
            if is_catastrophic(parse(token.text[1 : token.text.rindex("/")], f"{WHAT}: regex")):
                raise self.fail("the regex matches some texts in exponentially many ways", token.at)
            return Terminal(token.text)
        if token.kind == "name":
            return Ref(token.text)
        if token.text == "%json":
            return Terminal(token.text)
        if token.text in ("(", "["):
            inner = self.alternatives(depth + 1)
            closing = self.next()
            if closing.text != {"(": ")", "[": "]"}[token.text]:
                raise self.fail(f"an unclosed {token.text}", token.at)
            return inner if token.text == "(" else Times(inner, 0, 1)
        raise self.fail(f"{token.text!r:.20} is not supported here", token.at)

    def string(self, token: _Token) -> Part:
        if self.peek().text == "..":
            self.next()
            self.next()
        return Terminal(token.text, empty=token.text.startswith('""'))

    def repeated(self, part: Part) -> Part:
        count = 0
        while True:
            token = self.peek()
            if token.kind == "sign" and token.text in "*+?":
                low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[token.text]
                part = Times(part, low, high)
            elif token.kind == "bounds":
                part = self.counted(part, token)
            else:
                return part
            count += 1
            if count > MAX_REPEATS:
                raise self.fail(f"over {MAX_REPEATS} repetitions of one item", token.at)
            self.next()

    def counted(self, part: Part, token: _Token) -> Part:
        low, comma, high = token.text.strip("{}~").partition(",")
        if high and int(high) < int(low):
            raise self.fail(f"the counts of {token.text} are in the wrong order", token.at)
        return Times(part, int(low), int(low) if not comma else int(high) if high else None)


def read_lark(text: str) -> str:
    """The grammar with our settings in each embedded schema. Raises RequestError if it is malformed, too
    large, endless, or not supported.
    """
    reader = _LarkReader(text)
    check_rules(reader.grammar(), "start", WHAT, left_recursion=True)
    for first, end, schema in reversed(reader.schemas):
        text = text[:first] + with_settings(schema) + text[end:]
    return text
