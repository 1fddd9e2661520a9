"""A family: how models write tool calls. One small file each in families/, found by its name.

Invariant: a family states its markers and one grammar; nothing here asks for a model's name.
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
    """begins: markers that open calls. marks: others that may be tokens. calls(reader, begin): what follows.

    bare: calls may open an answer without a marker; one of `opens` must come first then (any for ""). ids:
    the form of a call's id, "" or "letters9". order: a family that can be mistaken for others comes after
    them. whole(reader, opening): the grammar of whole answers, where thinking and text have their own form;
    then `prefill` gives what stands before an answer's text, or its reasoning, that is to be continued.
    thought: what stands before its thinking, behind it, and behind that until the answer begins. tells: texts
    inside of a call, each of which tells a form of its own.
    """

    begins: tuple[str, ...]
    calls: Grammar
    marks: tuple[str, ...] = ()
    bare: bool = False
    opens: str = "{"
    ids: str = ""
    order: int = 0
    whole: Grammar | None = None
    prefill: Callable[[str | None, str], str] | None = None
    thought: tuple[str, str, str] | None = None
    tells: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        return self.begins + self.marks


@cache
def families() -> dict[str, Family]:
    """All of them by name, in the order in which they are tried."""
    package = import_module("satchel.formats.chat.families")
    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    found: dict[str, Family] = {
        name: import_module(f"satchel.formats.chat.families.{name}").FAMILY for name in names
    }
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[0])))
