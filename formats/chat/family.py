"""A family is one format of tool calls. Each is a file in families/, found by its name.

A family defines its markers and one grammar. It never depends on a model's name.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from satchel.formats.chat.reader import AnswerReader, Steps

Grammar = Callable[[AnswerReader, str], Steps[None]]


@dataclass(frozen=True, slots=True)
class Family:
    """One format of tool calls."""

    begins: tuple[str, ...]  # markers that open calls
    # (reader, begin): parses the calls after the marker `begin`; None where `whole` parses them.
    calls: Grammar | None = None
    marks: tuple[str, ...] = ()  # further markers that may be tokens
    bare: bool = False  # calls may begin an answer without a marker
    opens: str = "{"  # characters with which such a call begins; "": any
    ids: str = ""  # the form of a call's id: "" or "letters9"
    order: int = 0  # detection order: a family that can be mistaken for others comes after them
    # (reader, opening): the grammar of complete answers, for formats that mark reasoning and text
    # differently.
    whole: Grammar | None = None
    # With `whole`: the text before an answer that continues (reasoning, content).
    prefill: Callable[[str | None, str], str] | None = None
    # texts before reasoning, after it, and from there to the answer
    thought: tuple[str, str, str] | None = None
    tells: tuple[str, ...] = ()  # texts inside calls, each of which identifies a variant of the format

    @property
    def markers(self) -> tuple[str, ...]:
        return self.begins + self.marks


@cache
def families() -> dict[str, Family]:
    """All families by name, in detection order."""
    package = import_module("satchel.formats.chat.families")
    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    found: dict[str, Family] = {
        name: import_module(f"satchel.formats.chat.families.{name}").FAMILY for name in names
    }
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[0])))
