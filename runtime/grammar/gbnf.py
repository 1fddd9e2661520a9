"""GBNF, llama.cpp's grammar format, translated for llguidance.

A grammar without recursion becomes one regular expression. Any other is matched character by character,
because llguidance's terminals take the longest match and GBNF's do not.
"""

from __future__ import annotations

import re

from satchel.errors import RequestError
from satchel.runtime.grammar.regex import MAX_COUNT
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
    find_cycle,
    inner_first,
    refs,
)

# Possessive: a comment can be split into comments in exponentially many ways.
BLANK = re.compile(r"(?:[ \t]|#[^\n]*+)*+")
BLANKS = re.compile(r"(?:\s|#[^\n]*+)*+")
NAME = re.compile(r"[A-Za-z0-9_-]+")
HEAD = re.compile(r"(?:\s|#[^\n]*+)*+([A-Za-z0-9_-]++)(?:[ \t]|#[^\n]*+)*+::=")
BOUNDS = re.compile(r"\{\s*(\d{1,9})\s*(,\s*(\d{0,9})\s*)?\}")
ESCAPE = re.compile(r'\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([nrt\\"\[\]\-^/]))')
PLAIN = {"n": "\n", "r": "\r", "t": "\t"}
MAX_REGEX = 20_000  # longest regular expression made of rules, in characters

WHAT = "GBNF grammar"


class _GbnfReader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.rules: dict[str, Part] = {}

    def fail(self, message: str) -> RequestError:
        line = self.text.count("\n", 0, self.at) + 1
        column = self.at - (self.text.rfind("\n", 0, self.at) + 1) + 1
        return RequestError(f"{WHAT}: line {line}, column {column}: {message}")

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def skip(self, blank: re.Pattern[str]) -> None:
        found = blank.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def grammar(self) -> dict[str, Part]:
        self.skip(BLANKS)
        while self.at < len(self.text):
            head = HEAD.match(self.text, self.at)
            if head is None:
                raise self.fail(f"expected a rule (name ::= ...), got {self.text[self.at : self.at + 20]!r}")
            name = head[1]
            if name in self.rules:
                raise self.fail(f"rule {name!r:.60} is defined twice")
            self.at = head.end()
            self.skip(BLANKS)
            self.rules[name] = self.alternatives(0)
            self.skip(BLANKS)
        return self.rules

    def alternatives(self, depth: int) -> Part:
        if depth > MAX_DEPTH:
            raise self.fail(f"over {MAX_DEPTH} nested groups")
        parts = [self.sequence(depth)]
        while self.peek() == "|":
            self.at += 1
            self.skip(BLANKS)
            parts.append(self.sequence(depth))
        return parts[0] if len(parts) == 1 else OneOf(tuple(parts))

    def sequence(self, depth: int) -> Part:
        """Items up to a | or the end of the rule, which is a line end outside brackets or the next rule's
        head.
        """
        parts: list[Part] = []
        blank = BLANKS if depth else BLANK
        while (char := self.peek()) and char not in "|)\r\n":
            if NAME.match(char) and HEAD.match(self.text, self.at):
                break
            parts.append(self.repeated(self.item(char, depth)))
            self.skip(blank)
        if self._goes_on():
            self.skip(BLANKS)
        return Seq(tuple(parts))

    def _goes_on(self) -> bool:
        found = BLANKS.match(self.text, self.at)
        return found is not None and self.text[found.end() : found.end() + 1] == "|"

    def item(self, char: str, depth: int) -> Part:
        if char == '"':
            return self.literal()
        if char == "[":
            return self.char_class()
        if char == "(":
            return self.group(depth)
        if char == ".":
            self.at += 1
            return Terminal("(?s:.)")
        name = NAME.match(self.text, self.at)
        if name:
            self.at = name.end()
            return Ref(name[0])
        if char in "<!":
            raise self.fail("tokens by name or number are not supported: write their text")
        raise self.fail(f"expected a literal, a class, a group or a rule, got {char!r}")

    def group(self, depth: int) -> Part:
        opened = self.at
        self.at += 1
        self.skip(BLANKS)
        part = self.alternatives(depth + 1)
        self.skip(BLANKS)
        if self.peek() != ")":
            self.at = opened
            raise self.fail("a ( without )")
        self.at += 1
        return part

    def literal(self) -> Part:
        opened = self.at
        self.at += 1
        chars: list[Part] = []
        while (char := self.peek()) != '"':
            if char in ("", "\n"):
                self.at = opened
                raise self.fail('an unclosed "')
            chars.append(Terminal(quoted(self.char(char))))
        self.at += 1
        return Seq(tuple(chars))

    def char(self, char: str) -> str:
        if char != "\\":
            self.at += 1
            return char
        found = ESCAPE.match(self.text, self.at)
        if found is None:
            raise self.fail(f"the escape {self.text[self.at : self.at + 2]!r} is not known")
        self.at = found.end()
        code = found[1] or found[2] or found[3]
        if code and (int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) < 0xE000):
            raise self.fail(f"{found[0]} is not a character")
        return chr(int(code, 16)) if code else PLAIN.get(found[4], found[4])

    def char_class(self) -> Part:
        opened = self.at
        negated = self.text[self.at + 1 : self.at + 2] == "^"
        self.at += 1 + negated
        ranges: list[str] = []
        while (char := self.peek()) != "]":
            if char in ("", "\n"):
                self.at = opened
                raise self.fail("a [ without ]")
            first = last = self.char(char)
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                last = self.char(self.peek())
            if last < first:
                raise self.fail(f"the range {first!r} to {last!r} is in the wrong order")
            ranges.append(quoted(first) + ("" if first == last else "-" + quoted(last)))
        self.at += 1
        if not ranges and not negated:
            raise self.fail("an empty class")
        return Terminal(f"[{'^' if negated else ''}{''.join(ranges)}]" if ranges else "(?s:.)")

    def repeated(self, part: Part) -> Part:
        count = 0
        while (char := self.peek()) and char in "*+?{":
            count += 1
            if count > MAX_REPEATS:
                raise self.fail(f"over {MAX_REPEATS} repetitions of one item")
            if char == "{":
                part = self.counted(part)
                continue
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
            part = Times(part, low, high)
            self.at += 1
        return part

    def counted(self, part: Part) -> Part:
        found = BOUNDS.match(self.text, self.at)
        if found is None:
            raise self.fail("expected {n}, {n,} or {n,m} with numbers under 10^9")
        low = int(found[1])
        high = low if found[2] is None else int(found[3]) if found[3] else None
        if high is not None and high < low:
            raise self.fail(f"the counts of {found[0]} are in the wrong order")
        self.at = found.end()
        return Times(part, low, high)


def gbnf_rules(text: str) -> dict[str, Part]:
    """The rules by name. Raises RequestError if the grammar is malformed or too large, or a rule is missing,
    endless or left-recursive.
    """
    rules = _GbnfReader(text).grammar()
    check_rules(rules, "root", WHAT, left_recursion=False)
    return rules


def read_gbnf(text: str) -> tuple[str, bool]:
    """A regular expression (True) or a Lark grammar (False) for the same language. Raises RequestError as
    gbnf_rules().
    """
    rules = gbnf_rules(text)
    edges = {name: list(refs(part)) for name, part in rules.items()}
    if find_cycle(edges) is None:
        pattern = _written_out(rules, inner_first(edges, "root"))
        if pattern is not None:
            return pattern, True
    names = {name: f"r{i}" for i, name in enumerate(rules)} | {"root": "start"}
    return "\n".join(f"{names[name]}: {_lark(part, names)}" for name, part in rules.items()), False


def _written_out(rules: dict[str, Part], order: list[str]) -> str | None:
    """The last rule as one regular expression, with all others inlined; None if one gets too long."""
    made: dict[str, str] = {}
    for name in order:
        pattern = _regex(rules[name], made)
        if pattern is None:
            return None
        made[name] = pattern
    return made[order[-1]]


def _regex(part: Part, made: dict[str, str]) -> str | None:
    """A part as a regular expression. made: expressions of the rules that it needs."""
    if isinstance(part, Terminal):
        return part.source
    if isinstance(part, Ref):
        return made[part.name]
    if isinstance(part, Times):
        inner = _regex(part.part, made)
        high = "" if part.high is None else part.high
        if inner is None or max(part.low, part.high or 0) > MAX_COUNT:
            return None
        return f"(?:{inner}){{{part.low},{high}}}"
    pieces: list[str] = []
    size = 0
    for item in part.parts:
        inner = _regex(item, made)
        size += MAX_REGEX + 1 if inner is None else len(inner)
        if inner is None or size > MAX_REGEX:
            return None
        pieces.append(inner)
    return "".join(pieces) if isinstance(part, Seq) else f"(?:{'|'.join(pieces)})"


def _lark(part: Part, names: dict[str, str]) -> str:
    if isinstance(part, Terminal):
        return f"/{part.source}/"
    if isinstance(part, Ref):
        return names[part.name]
    if isinstance(part, Times):
        high = "" if part.high is None else part.high
        return f"({_lark(part.part, names)}){{{part.low},{high}}}"
    pieces = [_lark(item, names) for item in part.parts]
    return (" ".join(pieces) or '""') if isinstance(part, Seq) else f"({' | '.join(pieces)})"


def quoted(char: str) -> str:
    """A character escaped for a regular expression, inside a class or outside."""
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}"
