"""JSON that every reader reads alike: no NaN or infinity, no key twice in one object."""

from __future__ import annotations

import json
from typing import Any


def loads(text: str) -> Any:
    """The value of a text. ValueError, of which json.JSONDecodeError is one, for what is no such JSON."""
    return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)


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
