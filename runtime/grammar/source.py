"""A grammar in llguidance's language, with the check of the finished text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from satchel.errors import RequestError
from satchel.runtime.grammar.check import Check


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """A grammar for llguidance."""

    what: str  # the spec's name in errors
    grammar: str
    check: Check
    tokens: tuple[int, ...] = ()  # ids of the markers that it may ask for
    locate: Callable[[], str] | None = None  # finds the place of an error

    def fail(self, message: str, place: str = "") -> RequestError:
        return RequestError(f"{self.what}{f' at {place}' if place else ''}: {message}")
