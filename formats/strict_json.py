"""JSON that every reader reads alike: no NaN or infinity, no key twice in one object."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

MOST_DIGITS = 1000  # of a whole number, where they are bounded: to read one takes their square


def loads(text: str, *, bounded: bool = False) -> Any:
    """The value of a text. ValueError, of which json.JSONDecodeError is one, for what is no such JSON.
    bounded: numbers that no float holds (1e999), or of over MOST_DIGITS digits, are none either.
    """
    whole, broken = (_whole, _finite) if bounded else (None, None)
    return json.loads(
        text, parse_constant=_no_constant, parse_int=whole, parse_float=broken, object_pairs_hook=_unique
    )


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits, {MOST_DIGITS} are the most")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError(f"{digits[:40]} is out of range")
    return number


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r:.60} stands twice in one object")
            seen.add(key)
    return found
