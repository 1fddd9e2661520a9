"""The methods that a template may call on plain values, each with a function that pays for its result.

Invariant: a method that is not in METHODS can't be called, so a new Python version adds no reachable method.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from satchel.formats.template.limits import LimitReached, TemplateMeter

MethodCheck = Callable[[TemplateMeter, Any, tuple[Any, ...]], None]

_MAX_WIDTH = 10_000  # of one printf or format field
_NUMBER = re.compile(r"\d+")
_WIDTHS = re.compile(r"[-+ #0]*(\*|\d+)?(?:\.(\*|\d+))?")
_BRACKET = re.compile(r"[()]")


def printf(meter: TemplateMeter, text: str, values: Any) -> None:
    """Pays for `text % values` before it is computed. LimitReached for a huge width, also one from the
    values.
    """
    meter.tick(1 + (len(text) >> 2))
    items = values if isinstance(values, tuple) else (values,)
    widest = str(max((min(abs(item), _MAX_WIDTH + 1) for item in items if isinstance(item, int)), default=0))
    widths = fields = 0
    place = text.find("%")
    while place >= 0:
        match = _WIDTHS.match(text, _after_key(text, place + 1))
        for number in match.groups() if match else ():
            if number:
                widths += field_width(widest if number == "*" else number)
        fields += 1
        place = text.find("%", max(place + 1, match.end() if match else 0))
    # Several fields can name the same value of a mapping, so each field counts as if it printed all values.
    times = fields if isinstance(values, Mapping) else 1
    meter.grow(len(text) + widths + times * meter.weigh(values))


def _after_key(text: str, start: int) -> int:
    """The index after a `(key)` with balanced brackets that begins at `start`; `start` where
    there is none.
    """
    if not text.startswith("(", start):
        return start
    depth = 0
    for bracket in _BRACKET.finditer(text, start):
        depth += 1 if bracket[0] == "(" else -1
        if depth == 0:
            return bracket.end()
    return len(text)


def field_width(digits: str) -> int:
    """The width or precision of a field. LimitReached for a huge one."""
    if len(digits) > 8 or int(digits) > _MAX_WIDTH:
        raise LimitReached(f"formats a field wider than {_MAX_WIDTH:,} characters")
    return int(digits)


def spec_width(spec: str) -> int:
    """Characters that a `str.format` specification can add."""
    return sum(map(field_width, _NUMBER.findall(spec)))


def replaced(meter: TemplateMeter, text: str, old: str, new: str, count: int = -1) -> None:
    """Pays for `text.replace(old, new, count)` before it is computed."""
    meter.tick(1 + (len(text) >> 8))
    hits = text.count(old)
    meter.grow(len(text) + (hits if count < 0 else min(hits, count)) * len(new))


def _replace(meter: TemplateMeter, text: Any, args: tuple[Any, ...]) -> None:
    if len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        replaced(meter, text, *args[:3])


def _width(meter: TemplateMeter, text: Any, args: tuple[Any, ...]) -> None:
    if args and isinstance(args[0], int):
        meter.grow(max(len(text), args[0]))


def _tabs(meter: TemplateMeter, text: Any, args: tuple[Any, ...]) -> None:
    size = args[0] if args else 8
    if isinstance(size, int):
        meter.grow(len(text) + text.count("\t") * max(size, 0))


def _join(meter: TemplateMeter, text: Any, args: tuple[Any, ...]) -> None:
    if args and isinstance(args[0], (list, tuple, dict)):
        meter.grow(meter.weigh(args[0]) + len(text) * len(args[0]))
    elif args:
        meter.grow((len(text) + 1) * meter.weigh(args[0]))


def _pieces(meter: TemplateMeter, text: Any, args: tuple[Any, ...]) -> None:
    """Pays for a split: each piece is an object of its own and counts as 4 elements."""
    separator = args[0] if args and isinstance(args[0], str) and args[0] else None
    pieces = (
        text.count(separator) + 1 if separator else min(len(text), text.count(" ") + text.count("\n") + 64)
    )
    meter.grow(len(text), elements=4 * pieces)


def _lines(meter: TemplateMeter, text: Any, args: tuple[Any, ...]) -> None:
    meter.grow(len(text), elements=4 * (text.count("\n") + text.count("\r") + 1))


def _linear(meter: TemplateMeter, text: Any, args: tuple[Any, ...]) -> None:
    """Pays for a result that is at most three times as long as the text (`ŉ`.upper())."""
    meter.grow(3 * len(text))


def _strip(meter: TemplateMeter, text: Any, args: tuple[Any, ...]) -> None:
    """Pays for a strip, whose time is at worst the product of the lengths of text and character set."""
    stripped(meter, text, args[0] if args else None)


def stripped(meter: TemplateMeter, text: str, characters: Any) -> None:
    """Pays for `text.strip(characters)`."""
    size = len(characters) if isinstance(characters, str) else 1
    meter.tick(1 + (len(text) * size >> 8))
    meter.grow(len(text))


def _backwards(meter: TemplateMeter, text: Any, args: tuple[Any, ...]) -> None:
    """Pays for a search from the right, whose time is at worst the product of both lengths."""
    size = len(args[0]) if args and isinstance(args[0], str) else 1
    meter.tick(1 + (len(text) * size >> 8))
    _pieces(meter, text, args)


def _scan(meter: TemplateMeter, value: Any, args: tuple[Any, ...]) -> None:
    meter.tick(1 + (len(value) >> 8))


def _deep(meter: TemplateMeter, value: Any, args: tuple[Any, ...]) -> None:
    meter.weigh(value)
    meter.weigh(args)


def _key(meter: TemplateMeter, value: Any, args: tuple[Any, ...]) -> None:
    if args and isinstance(args[0], tuple):
        meter.weigh(args[0])


def _shallow(meter: TemplateMeter, value: Any, args: tuple[Any, ...]) -> None:
    meter.tick()


def _copy(meter: TemplateMeter, value: Any, args: tuple[Any, ...]) -> None:
    meter.grow(elements=len(value))


def _append(meter: TemplateMeter, value: Any, args: tuple[Any, ...]) -> None:
    meter.grow(elements=1)


_SCANS = (
    "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit",
    "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "startswith",
)  # fmt: skip
_LINEARS = (
    "capitalize", "casefold", "lower", "partition", "removeprefix", "removesuffix", "swapcase", "title",
    "upper",
)  # fmt: skip
# These delete or change letters, which can turn user text into a control token's text: their results are
# escaped again.
REWRITES = frozenset(("capitalize", "casefold", "lower", "replace", "swapcase", "title", "upper"))

_STR: dict[str, MethodCheck] = {
    **dict.fromkeys(_SCANS, _scan),
    **dict.fromkeys(_LINEARS, _linear),
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _width),
    "expandtabs": _tabs,
    "join": _join,
    "replace": _replace,
    **dict.fromkeys(("rfind", "rindex", "rpartition", "rsplit"), _backwards),
    **dict.fromkeys(("lstrip", "rstrip", "strip"), _strip),
    "split": _pieces,
    "splitlines": _lines,
}
_TUPLE: dict[str, MethodCheck] = {"count": _deep, "index": _deep}
_LIST: dict[str, MethodCheck] = {**_TUPLE, "copy": _copy, "append": _append, "pop": _scan}
_DICT: dict[str, MethodCheck] = {
    "get": _key,
    "copy": _copy,
    "items": _shallow,
    "keys": _shallow,
    "values": _shallow,
}
_NUMBERS: dict[str, MethodCheck] = {"is_integer": _shallow, "bit_length": _shallow, "conjugate": _shallow}

METHODS: dict[type, dict[str, MethodCheck]] = {
    str: _STR,
    list: _LIST,
    tuple: _TUPLE,
    dict: _DICT,
    int: _NUMBERS,
    float: _NUMBERS,
    bool: _NUMBERS,
}
