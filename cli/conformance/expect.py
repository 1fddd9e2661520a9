"""Results of a check: it raises Wrong where it fails, and Skip, with the reason, where it can't be made."""

from __future__ import annotations

import json
import reprlib
from typing import Any, NoReturn


class Wrong(Exception):
    """The check fails."""


class Skip(Exception):
    """The check can't be made here; the message gives the reason."""


def expect(holds: object, text: str) -> None:
    if not holds:
        raise Wrong(text)


def same(what: str, got: object, wanted: object) -> None:
    if got != wanted:
        raise Wrong(f"{what}: expected {short(wanted)}, got {short(got)}")


def fits(value: object, pattern: Any, where: str = "the body") -> None:
    """The value has the pattern's shape. A type: it is of that type, bool being no int; a tuple: of one of
    them; a dict: has these keys, maybe others; a list of one pattern: a list of at least one such; None or
    another value: that value.
    """
    if isinstance(pattern, dict):
        if not isinstance(value, dict):
            raise Wrong(f"{where}: expected an object, got {short(value)}")
        for key, inner in pattern.items():
            expect(key in value, f"{where}: no {key!r} in {short(value)}")
            fits(value[key], inner, f"{where}.{key}")
    elif isinstance(pattern, list):
        if not isinstance(value, list) or not value:
            raise Wrong(f"{where}: expected a list with something, got {short(value)}")
        for i, item in enumerate(value):
            fits(item, pattern[0], f"{where}[{i}]")
    elif isinstance(pattern, type | tuple):
        kinds = pattern if isinstance(pattern, tuple) else (pattern,)
        names = " or ".join("null" if k is None else k.__name__ for k in kinds)
        expect(any(_of(value, k) for k in kinds), f"{where}: expected {names}, got {short(value)}")
    else:
        same(where, value, pattern)


def _of(value: object, kind: type | None) -> bool:
    if kind is None or value is None:
        return value is kind
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def parsed(text: object, what: str) -> Any:
    """The text parsed as JSON. Wrong where it is not JSON."""
    try:
        return json.loads(text)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        raise Wrong(f"{what} is no JSON: {short(text)}") from None


def short(value: object) -> str:
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = 120
    brief.maxdict = brief.maxlist = 12
    return brief.repr(value)


def skip(text: str) -> NoReturn:
    raise Skip(text)
