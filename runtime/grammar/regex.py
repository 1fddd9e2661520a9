"""Regular expressions read before they are compiled: what can't be matched in linear time, or is too large,
is refused with its column.

The tree is for these checks alone. A set is a tuple of (first, last) code points, only as exact as they need.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from satchel.errors import RequestError

MAX_LENGTH = 1 << 16  # characters
MAX_DEPTH = 100  # groups in each other
MAX_COUNT = 100_000  # of {n}, and of characters with every repetition written out
LAST = 0x10FFFF
Ranges: TypeAlias = tuple[tuple[int, int], ...]
DIGIT: Ranges = ((0x30, 0x39),)
SPACE: Ranges = ((9, 13), (32, 32))
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
CLASSES = {"d": DIGIT, "s": SPACE, "w": WORD}
CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "a": 7, "0": 0}
QUANTIFIER = re.compile(r"\{(\d+)(,(\d*))?\}")
HEX = re.compile(r"[xuU]\{([0-9A-Fa-f]{1,8})\}|x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})")
PROPERTY = re.compile(r"[pP](?:\{[^{}]*\}|[A-Za-z])")
GROUP = re.compile(r"\?(?:P?<[A-Za-z_]\w*>|[imsu]*(?:-[imsu]+)?([:)]))")


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Cat:
    parts: tuple[RegexNode, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    parts: tuple[RegexNode, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """low to high times; high None: without end."""

    part: RegexNode
    low: int
    high: int | None


RegexNode: TypeAlias = Chars | Cat | Alt | Repeat
EMPTY = Cat(())


def parse(pattern: str, what: str = "regex") -> RegexNode:
    """The tree of a pattern; RequestError for what is malformed, too large, or not regular."""
    if len(pattern) > MAX_LENGTH:
        raise RequestError(f"{what}: expected at most {MAX_LENGTH:,} characters, got {len(pattern):,}")
    reader = _RegexReader(pattern, what)
    node = reader.alternatives(0)
    if reader.at < len(pattern):
        raise reader.fail("a ) without its (")
    if (size := size_of(node)) > MAX_COUNT:
        raise RequestError(
            f"{what}: its repetitions written out take {size:,} characters, {MAX_COUNT:,} is the limit"
        )
    return node


def size_of(node: RegexNode) -> int:
    """Characters of the pattern with every bounded repetition written out."""
    if isinstance(node, Chars):
        return 1
    if isinstance(node, Repeat):
        return size_of(node.part) * max(node.high or node.low, 1)
    return sum(map(size_of, node.parts))


class _RegexReader:
    def __init__(self, text: str, what: str) -> None:
        self.text, self.what, self.at = text, what, 0

    def fail(self, found: str) -> RequestError:
        return RequestError(f"{self.what}: {found} at column {self.at + 1} of {_short(self.text)}")

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def alternatives(self, depth: int) -> RegexNode:
        if depth > MAX_DEPTH:
            raise self.fail(f"over {MAX_DEPTH} groups in each other")
        parts = [self.sequence(depth)]
        while self.peek() == "|":
            self.at += 1
            parts.append(self.sequence(depth))
        return parts[0] if len(parts) == 1 else Alt(tuple(parts))

    def sequence(self, depth: int) -> RegexNode:
        parts: list[RegexNode] = []
        while (char := self.peek()) and char not in "|)":
            node = self.atom(char, depth)
            parts.append(self.quantified(node))
        return parts[0] if len(parts) == 1 else Cat(tuple(parts))

    def atom(self, char: str, depth: int) -> RegexNode:
        if char == "(":
            return self.group(depth)
        if char == "[":
            return Chars(self.char_class())
        if char == "\\":
            return Chars(self.escape())
        if char in "*+?":
            raise self.fail(f"a {char} with nothing to repeat")
        self.at += 1
        if char in "^$":
            return EMPTY
        return Chars(((0, 9), (11, LAST))) if char == "." else Chars(((ord(char), ord(char)),))

    def group(self, depth: int) -> RegexNode:
        opened = self.at
        self.at += 1
        if self.peek() == "?":
            head = GROUP.match(self.text, self.at)
            if head is None:
                self.at = opened
                raise self.fail("a group of a kind that is not supported (look-around, atomic, recursive)")
            self.at = head.end()
            if head[1] == ")":  # flags for what follows
                return EMPTY
        node = self.alternatives(depth + 1)
        if self.peek() != ")":
            self.at = opened
            raise self.fail("a ( without its )")
        self.at += 1
        return node

    def quantified(self, node: RegexNode) -> RegexNode:
        char, bounds = self.peek(), QUANTIFIER.match(self.text, self.at)
        if char and char in "*+?":
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
            self.at += 1
        elif bounds:
            low, high = self.bounds(bounds)
        else:
            return node
        if self.peek() == "?":
            self.at += 1
        if (following := self.peek()) and (following in "*+?" or QUANTIFIER.match(self.text, self.at)):
            raise self.fail("a second repetition; put the first one in a group")
        return Repeat(node, low, high)

    def bounds(self, found: re.Match[str]) -> tuple[int, int | None]:
        if max(len(found[1]), len(found[3] or "")) > 9:
            raise self.fail(f"a count over the limit of {MAX_COUNT:,}")
        low = int(found[1])
        high = low if found[2] is None else int(found[3]) if found[3] else None
        if high is not None and high < low:
            raise self.fail(f"counts in the wrong order, {found[0]},")
        if max(low, high or 0) > MAX_COUNT:
            raise self.fail(f"a count over the limit of {MAX_COUNT:,}, {found[0]},")
        self.at = found.end()
        return low, high

    def escape(self) -> Ranges:
        char = self.text[self.at + 1 : self.at + 2]
        if not char:
            raise self.fail("a \\ with nothing after it")
        if char in "bBAzZG" or char in "123456789k":
            kind = "a back-reference" if char in "123456789k" else "a border that is no ^ or $"
            raise self.fail(f"\\{char}, {kind}, which is not supported,")
        found = HEX.match(self.text, self.at + 1)
        if found:
            self.at = found.end()
            code = int(next(group for group in found.groups() if group), 16)
            return ((code, code),)
        if char in "pP":
            return self.unicode_property()
        self.at += 2
        if char.lower() in CLASSES:
            ranges = CLASSES[char.lower()]
            return ranges if char.islower() else inverted(ranges)
        code = CONTROLS.get(char, ord(char))
        return ((code, code),)

    def unicode_property(self) -> Ranges:
        found = PROPERTY.match(self.text, self.at + 1)
        if not found:
            raise self.fail("a \\p without a name in braces")
        self.at = found.end()
        return ((0x80, LAST),)  # enough for what it is needed for: some letters outside ASCII

    def char_class(self) -> Ranges:
        opened = self.at
        self.at += 1
        negated = self.peek() == "^"
        self.at += negated
        ranges: list[tuple[int, int]] = []
        while (char := self.peek()) != "]" or not ranges:
            if not char:
                self.at = opened
                raise self.fail("a [ without its ]")
            ranges += self.class_item(char)
        self.at += 1
        return inverted(tuple(ranges)) if negated else tuple(ranges)

    def class_item(self, char: str) -> Ranges:
        if char == "[" or self.text[self.at : self.at + 2] in ("&&", "--", "~~"):
            raise self.fail("a class inside a class (write \\[ for the bracket itself)")
        first = self.class_char(char)
        single = len(first) == 1 and first[0][0] == first[0][1]
        if not single or self.peek() != "-" or self.text[self.at + 1 : self.at + 2] in ("]", ""):
            return first
        self.at += 1
        last = self.class_char(self.peek())
        if len(last) != 1 or last[0][0] != last[0][1] or last[0][0] < first[0][0]:
            raise self.fail("a range in the wrong order")
        return ((first[0][0], last[0][0]),)

    def class_char(self, char: str) -> Ranges:
        if char == "\\":
            return self.escape()
        self.at += 1
        return ((ord(char), ord(char)),)


def inverted(ranges: Ranges) -> Ranges:
    found, at = [], 0
    for first, last in sorted(ranges):
        if first > at:
            found.append((at, first - 1))
        at = max(at, last + 1)
    return (*found, (at, LAST)) if at <= LAST else tuple(found)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
