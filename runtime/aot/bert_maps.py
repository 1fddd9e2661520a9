"""What WordPiece's normalizer makes of each character, as ranges, asked of the library that runs it.

The library cleans a text, puts spaces around Chinese characters, takes characters apart (NFD, which sorts
marks that follow each other), drops nonspacing marks and lower-cases. All of that but the sorting depends on
one character alone. So the tables are a map of characters, and the classes by which marks are sorted.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from functools import cache
from itertools import groupby

from satchel.errors import ModelError
from satchel.runtime.aot.patterns import Ranges, blocks

MOVE, DROP, BREAK, SPACED, HANGUL, POINTS = range(6)  # kinds of maps, as in cext/embed/sections.h
MapRow = tuple[int, int, int, int, int, int]
BORDER = "\u4dc0"  # a symbol that normalizers leave as it is; it stands between the characters asked for
LAST_MARK = "\u0345"  # its combining class, 240, is the highest
SYLLABLES = range(0xAC00, 0xD7A4)


@cache
def bert_maps(lowercase: bool, accents: bool) -> tuple[list[MapRow], list[int], list[Ranges]]:
    """The map's rows, their points, and the classes: punctuation, then marks that stay, in the order in which
    they are sorted. accents: whether the normalizer takes characters apart and drops their marks.
    """
    try:
        from tokenizers import normalizers
    except ImportError:
        raise ModelError(
            "the tables of a WordPiece tokenizer need the package tokenizers: pip install 'satchel[server]'"
        ) from None

    def step(clean: bool = False, chinese: bool = False, strip: bool = False, lower: bool = False) -> _Step:
        made = normalizers.BertNormalizer(
            clean_text=clean, handle_chinese_chars=chinese, strip_accents=strip, lowercase=lower
        )
        return made.normalize_str

    whole = step(True, True, accents, lowercase)
    maps: dict[int, str] = {}  # characters that change, with a NUL for a dropped one that is no mark
    last: dict[int, int] = {}  # the last of the characters that the first one answers for
    for low, high, every in blocks():
        asked = [c for c in range(low, high + 1 if every else low + 1) if c != ord(BORDER)]
        last.update({} if every else {low: high})
        for point, made in zip(asked, _each(whole, map(chr, asked)), strict=True):
            if made != chr(point):
                maps[point] = made
    order: list[list[int]] = []
    if accents:
        order = _orders(maps, step(strip=True), step(lower=lowercase))
        _add_breaks(maps, step(True, True), step(strip=True), step(lower=lowercase))
    outputs = {ord(char) for made in maps.values() for char in made}
    return *_rows(maps, last), [_punctuation(maps, outputs), *map(_ranges, order)]


_Step = Callable[[str], str]


def _each(step: _Step, texts: Iterable[str]) -> list[str]:
    """What a normalizer makes of each text."""
    return step(BORDER.join(texts)).split(BORDER)


@cache
def _marks() -> dict[int, int]:
    """The place of every character with a combining class in the order of these classes, from 1."""
    from tokenizers import normalizers

    decompose = normalizers.NFD().normalize_str
    every = [chr(c) for low, high, each in blocks() if each for c in range(low, high + 1) if c != ord(BORDER)]
    sorted_before = _each(decompose, (LAST_MARK + c for c in every))
    found = [
        c for c, made in zip(every, sorted_before, strict=True) if made == c + LAST_MARK or c == LAST_MARK
    ]
    classes: dict[int, str] = {}  # one mark of each class that Python's tables know
    for c in found:
        classes.setdefault(unicodedata.combining(c), c)
    counts = dict.fromkeys(found, 0)
    for mark in classes.values():
        for c, made in zip(found, _each(decompose, (mark + c for c in found)), strict=True):
            counts[c] += made == mark + c  # the mark's class is not above that of c
    places = {count: n + 1 for n, count in enumerate(sorted(set(counts.values())))}
    return {ord(c): places[count] for c, count in counts.items()}


def _parts(char: str) -> str:
    from tokenizers import normalizers

    return str(normalizers.NFD().normalize_str(char))


def _orders(maps: dict[int, str], strip: _Step, lower: _Step) -> list[list[int]]:
    """The marks that are not dropped, by their place in the order."""
    kept = [(place, c) for c, place in _marks().items() if strip(chr(c)) and c not in maps]
    changed = next((c for _, c in kept if lower(chr(c)) != chr(c)), None)
    if changed is not None:
        raise ModelError(
            f"the mark U+{changed:04X} has a small letter: the C library does not know such marks"
        )
    return [[c for _, c in found] for _, found in groupby(sorted(kept), lambda pair: pair[0])]


def _add_breaks(maps: dict[int, str], clean: _Step, strip: _Step, lower: _Step) -> None:
    """Puts a NUL where a character is dropped that is no mark: marks are not sorted across it."""
    marks = _marks()
    for point, made in maps.items():
        rest = clean(chr(point))
        parts = _parts(rest)
        if len(parts) == len(made):
            continue
        whole = [strip(c) or ("" if ord(c) in marks else "\0") for c in parts]
        with_breaks = "".join(c if c in ("", "\0") else lower(c) for c in whole)
        if with_breaks.replace("\0", "") != made:
            raise ModelError(f"U+{point:04X} becomes {made!r}, expected {with_breaks!r} by its parts")
        maps[point] = with_breaks


def _punctuation(maps: dict[int, str], outputs: set[int]) -> Ranges:
    """The characters that are words of their own. ModelError where white space is left."""
    from tokenizers import pre_tokenizers

    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    found: list[int] = []
    for low, high, every in blocks():
        asked = [c for c in range(low, high + 1 if every else low + 1) if c not in maps or c in outputs]
        asked = [c for c in asked if c not in (0, 0x20)]
        pieces = split("".join(f"x{chr(c)}x " for c in asked))
        marks = {piece for piece, _ in pieces if len(piece) == 1}
        alone = [c for c in asked if chr(c) in marks and c != ord("x")]
        if len(pieces) != len(asked) + 2 * len(alone):  # white space cuts a text in two, a mark in three
            raise ModelError("white space is left in normalized texts: the C library does not know it")
        found += alone
    return _ranges(found)


def _ranges(points: Iterable[int]) -> Ranges:
    found: list[tuple[int, int]] = []
    for point in sorted(points):
        joins = bool(found) and found[-1][1] + 1 == point
        found[-1:] = [(found[-1][0], point)] if joins else [*found[-1:], (point, point)]
    return tuple(found)


def _rows(maps: dict[int, str], last: dict[int, int]) -> tuple[list[MapRow], list[int]]:
    """The maps as ranges of characters with the same kind and value."""
    points: list[int] = []
    rows: list[list[int]] = []
    for point in sorted(maps):
        kind, value, count = _row(point, maps[point], points)
        high = last.get(point, point)
        same = bool(rows) and rows[-1][1] + 1 == point and rows[-1][2:4] == [kind, value] and kind != POINTS
        if same:
            rows[-1][1] = high
        else:
            rows.append([point, high, kind, value, count, 0])
    return [(a, b, c, d, e, f) for a, b, c, d, e, f in rows], points


def _row(point: int, made: str, points: list[int]) -> tuple[int, int, int]:
    """Kind, value and count of a character's row; its points are added."""
    if not made:
        return DROP, 0, 0
    if made == "\0":
        return BREAK, 0, 0
    if made == f" {chr(point)} ":
        return SPACED, 0, 0
    if point in SYLLABLES and made == unicodedata.normalize("NFD", chr(point)):
        return HANGUL, 0, 0
    if len(made) == 1:
        return MOVE, (ord(made) - point) % (1 << 32), 0
    points += map(ord, made)
    return POINTS, len(points) - len(made), len(made)
