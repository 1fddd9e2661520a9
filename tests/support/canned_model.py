"""A fake model with one fixed answer, for tests of API clients. It honours lengths, stop texts, seeds, biases
and schemas, so a client can tell a correct server from a wrong one.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

ANSWER = "The harbour lies quiet under grey clouds. Gulls cry above the old stone wall all day."


@dataclass(frozen=True)
class Made:
    """Pieces of an answer, and why it ended."""

    pieces: list[str]
    finish: str
    mark: str | None = None  # the stop text that ended the answer

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def pieces(text: str) -> list[str]:
    """Words, each with the space before it."""
    words = text.split(" ")
    return [words[0], *(f" {w}" for w in words[1:])]


def tokens(text: str) -> list[int]:
    return list(text.encode())


def instance(schema: dict[str, Any]) -> Any:
    """The smallest value that a schema allows."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        return {name: instance(inner) for name, inner in schema.get("properties", {}).items()}
    return {"string": "a", "integer": 1, "boolean": True}[schema["type"]]


def make(
    most: int = -1,
    *,
    stop: str | list[str] | None = None,
    seed: int | None = None,
    bias: object = None,
    begun: str = "",
    schema: dict[str, Any] | None = None,
) -> Made:
    """An answer of at most so many pieces, which continues the text that was begun."""
    if schema is not None:
        found = pieces(json.dumps(instance(schema), ensure_ascii=False))
    else:
        found = pieces(ANSWER.removeprefix(begun))
        if seed is not None:
            random.Random(seed).shuffle(found)
        if bias:
            found.reverse()
    finish, mark = "stop", None
    if 0 <= most < len(found):
        found, finish = found[:most], "length"
    marks = [stop] if isinstance(stop, str) else stop or []
    whole = "".join(found)
    if first := min((m for m in marks if m in whole), key=whole.index, default=None):
        found, finish, mark = pieces(whole[: whole.index(first)]), "stop", first
    return Made(found, finish, mark)
