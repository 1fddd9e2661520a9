"""Strict JSON: no NaN or infinity, no duplicate keys, so that all parsers agree on a text."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

MOST_DIGITS = 1000  # digits of an integer with `bounded`: parsing takes quadratic time


def loads(text: str, *, bounded: bool = False) -> Any:
    """Parses strict JSON. ValueError (json.JSONDecodeError is one) for any other text.

    bounded: also refuses numbers that overflow a float (1e999) and integers of more than MOST_DIGITS digits.
    """
    whole, broken = (_whole, _finite) if bounded else (None, None)
    return json.loads(
        text, parse_constant=_no_constant, parse_int=whole, parse_float=broken, object_pairs_hook=_unique
    )


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits, expected at most {MOST_DIGITS}")
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
                raise ValueError(f"the key {key!r:.60} occurs twice in one object")
            seen.add(key)
    return found
