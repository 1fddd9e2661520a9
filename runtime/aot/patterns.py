"""Compiles a pre-tokenizer's pattern (Oniguruma syntax) to code for the machine of cext/embed/pattern.c.

The machine is a backtracking one over code points, with the order of alternatives of Perl: it finds the same
match as the library that runs the pattern in Python. Which characters a class holds is asked of that library,
so that both agree on Unicode, and the machine needs no tables of it.

A pattern is refused that holds anything but characters, classes, groups, greedy repeats, possessive ones of a
class, look-arounds and the anchors \\G, \\b and $.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby

from satchel.errors import ModelError
from satchel.formats.tokenizer import library
from satchel.formats.tokenizer.bpe import ALPHABET
from satchel.formats.tokenizer.vocab import Meta

MATCH, CLASS, SPLIT, JUMP, RUN, LOOK, HOLD, START, BORDER, LINE_END = range(10)  # ops, as in sections.h
AHEAD, NOT_AHEAD, BEHIND, NOT_BEHIND = range(4)  # c of LOOK
MANY = 0xFFFFFFFF  # b of RUN: no limit
ASKED = 4096  # characters that the library is asked for at a time: its cost grows with the square
LOOKS = {"(?=": AHEAD, "(?!": NOT_AHEAD, "(?<=": BEHIND, "(?<!": NOT_BEHIND}
ATOM = re.compile(
    r"\\x\{[0-9A-Fa-f]{1,6}\}|\\[pP]\{\^?\w+\}|\\[sSdDwWrnt]|\\[^A-Za-z0-9]"
    r"|\[\^?(?:\\.|[^\[\]\\])(?:\\.|[^\[\]\\]|\[[^\[\]]*\])*\]|[^\\\[\](){}*+?|^$]"
)
ANCHORS = {r"\G": START, r"\b": BORDER, "$": LINE_END}
REPEAT = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}")
Ranges = tuple[tuple[int, int], ...]


@dataclass(slots=True)
class PatternProgram:
    """Code of one or more patterns, (op, a, b, c) each, and the classes that it names by number.

    CLASS a: one character of class a. SPLIT a b: go on at a, else at b. JUMP a. RUN c a b: a to b characters
    of class c, as many as possible first. LOOK a c: whether the code from the next one on matches here, or
    ends here (c); then go on at a. HOLD c a b: as RUN, and only as many as possible. START: where the search
    began. BORDER a: between characters of which one is of class a. LINE_END. MATCH: the end.
    """

    ranges_of: Callable[[str], Ranges]
    code: list[tuple[int, int, int, int]] = field(default_factory=list)
    classes: list[Ranges] = field(default_factory=list)

    def add(self, pattern: str) -> int:
        """Compiles a pattern; gives the number of its first code."""
        start = len(self.code)
        parser = _Parser(pattern, self)
        least = parser.alternatives(False)
        if parser.at < len(pattern):
            raise parser.unknown()
        if not least:
            raise ModelError(
                f"pattern {pattern!r:.60}: expected one that matches some text, got one that may not"
            )
        self.emit(MATCH)
        return start

    def emit(self, op: int, a: int = 0, b: int = 0, c: int = 0) -> int:
        self.code.append((op, a, b, c))
        return len(self.code) - 1

    def class_of(self, text: str) -> int:
        """The number of a class, from its text."""
        found = self.ranges_of(text)
        if found not in self.classes:
            self.classes.append(found)
        return self.classes.index(found)


@dataclass(slots=True)
class _Parser:
    """A recursive descent over one pattern. Each method gives the least number of characters that it matches;
    caseless: within (?i:.
    """

    text: str
    program: PatternProgram
    at: int = 0

    def alternatives(self, caseless: bool) -> int:
        ends: list[int] = []
        leasts: list[int] = []
        while True:
            split = self.program.emit(SPLIT)
            leasts.append(self.sequence(caseless))
            if self.text[self.at : self.at + 1] != "|":
                self.program.code[split] = (JUMP, split + 1, 0, 0)
                break
            self.at += 1
            ends.append(self.program.emit(JUMP))
            self.program.code[split] = (SPLIT, split + 1, len(self.program.code), 0)
        for end in ends:
            self.program.code[end] = (JUMP, len(self.program.code), 0, 0)
        return min(leasts)

    def sequence(self, caseless: bool) -> int:
        least = 0
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            least += self.piece(caseless)
        return least

    def piece(self, caseless: bool) -> int:
        opening = next(
            (o for o in ("(?:", "(?i:", "(?<=", "(?<!", "(?=", "(?!") if self.text.startswith(o, self.at)), ""
        )
        if opening in LOOKS:
            self.at += len(opening)
            self.look(LOOKS[opening], caseless)
            return 0
        if opening:
            self.at += len(opening)
            return self.group(caseless or opening == "(?i:")
        anchor = next((a for a in ANCHORS if self.text.startswith(a, self.at)), "")
        if anchor:
            self.at += len(anchor)
            word = self.program.class_of(r"\w") if anchor == r"\b" else 0
            self.program.emit(ANCHORS[anchor], word)
            return 0
        atom = ATOM.match(self.text, self.at)
        if atom is None:
            raise self.unknown()
        self.at = atom.end()
        least, most = self.repeat()
        holds = self.text[self.at : self.at + 1] == "+" and self.text[self.at - 1] in "*+?"
        self.at += holds
        number = self.program.class_of(f"(?i:{atom[0]})" if caseless else atom[0])
        if (least, most) == (1, 1):
            self.program.emit(CLASS, number)
        else:
            self.program.emit(HOLD if holds else RUN, least, most, number)
        return least

    def group(self, caseless: bool) -> int:
        """The rest of a group, with its repeat: copies as often as it must come, then as often as it may."""
        start, begin = len(self.program.code), self.at
        least_of_one = self.closed(caseless)
        end = self.at
        least, most = self.repeat()
        if self.text[self.at : self.at + 1] == "+":
            raise self.unknown()
        after = self.at
        if (least, most) == (1, 1):
            return least_of_one
        if not least_of_one:
            raise ModelError(
                f"pattern {self.text!r:.60}: a repeated group may match nothing; it is not supported"
            )
        del self.program.code[start:]

        def once() -> None:
            self.at = begin
            self.closed(caseless)
            assert self.at == end

        for _ in range(least):
            once()
        splits = []
        if most == MANY:
            splits = [self.program.emit(SPLIT)]
            once()
            self.program.emit(JUMP, splits[0])
        for _ in range(0 if most == MANY else most - least):
            splits.append(self.program.emit(SPLIT))
            once()
        for split in splits:
            self.program.code[split] = (SPLIT, split + 1, len(self.program.code), 0)
        self.at = after
        return least * least_of_one

    def closed(self, caseless: bool) -> int:
        least = self.alternatives(caseless)
        if self.text[self.at : self.at + 1] != ")":
            raise self.unknown()
        self.at += 1
        return least

    def look(self, how: int, caseless: bool) -> None:
        begin, look = self.at, self.program.emit(LOOK)
        self.closed(caseless)
        inner = self.program.code[look + 1 :]
        if how in (BEHIND, NOT_BEHIND) and [op for op, *_ in inner] != [JUMP, CLASS]:
            raise ModelError(
                f"pattern {self.text!r:.60}: at character {begin}: expected one character to look behind for"
            )
        self.program.emit(MATCH)
        self.program.code[look] = (LOOK, len(self.program.code), 0, how)

    def repeat(self) -> tuple[int, int]:
        """The least and most times of what stands before."""
        found = REPEAT.match(self.text, self.at)
        if found is None:
            return 1, 1
        self.at = found.end()
        if self.text[self.at : self.at + 1] == "?":
            raise self.unknown()
        if found[0] in "*+?":
            return {"*": (0, MANY), "+": (1, MANY), "?": (0, 1)}[found[0]]
        low, comma, high = found[0][1:-1].partition(",")
        return int(low), int(high or (MANY if comma else low))

    def unknown(self) -> ModelError:
        return ModelError(
            f"pattern {self.text!r:.60}: at character {self.at}: {self.text[self.at :][:8]!r} is not known"
        )


def library_ranges(text: str) -> Ranges:
    """The characters of a class, as ranges of code points, asked of the library that cuts by the pattern.
    Planes 4 to 13, and the private ones 15 and 16, are alike throughout: their first character answers for
    them.
    """
    return _asked(text)


@cache
def _asked(text: str) -> Ranges:
    if len(text) == 1:
        return ((ord(text), ord(text)),)
    outside = _without(f"(?:{text})+")
    found: list[tuple[int, int]] = []
    for low, high, every in blocks():
        asked = range(low, high + 1) if every else range(low, low + 1)
        others = set(outside("".join(map(chr, asked))))
        for other, run in groupby(map(chr, asked), others.__contains__):
            if not other:
                held = [*map(ord, run)]
                at, last = held[0], held[-1] if every else high
                joins = bool(found) and found[-1][1] + 1 == at
                found[-1:] = [(found[-1][0], last)] if joins else [*found[-1:], (at, last)]
    return tuple(found)


def _without(pattern: str) -> Callable[[str], str]:
    """The function that removes what matches a pattern from a text."""
    try:
        return library.remover(pattern)
    except ImportError:
        pass
    # Encoding by a vocabulary of bytes what remains takes several times as long. It is cut into short words,
    # for the cost of a word grows with its square.
    short = library.split([r"[\s\S]{1,64}"], library.BYTE_LEVEL)["pretokenizers"]
    cut = library.split([pattern], *short, behavior="Removed")
    index = {char: byte for byte, char in ALPHABET.items()}
    encode = library.load(Meta({}, f"pattern {pattern!r:.60}"), library.bpe(index, ()), cut)
    return lambda text: bytes(encode(text)).decode()


def blocks() -> Iterator[tuple[int, int, bool]]:
    """Ranges of code points without surrogates: first, last, and whether each is asked for, or the first
    answers for all.
    """
    for start in (*range(0, 0xD000, ASKED), *range(0xE000, 0x40000, ASKED), 0xE0000):
        yield start, start + ASKED - 1, True
        if start == 0xC000:
            yield 0xD000, 0xD7FF, True
        if start == 0x3F000:
            yield 0x40000, 0xDFFFF, False
    yield 0xE1000, 0xEFFFF, False
    for plane in (0xF0000, 0x100000):
        yield plane, plane + 0xFFFD, False
        yield plane + 0xFFFE, plane + 0xFFFF, True
