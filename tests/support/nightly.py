"""NIGHTLY.md, the list of tests that run by night. A row that begins with - marks a test by its name here;
one with + describes a mark in the test's file. A name is a pattern: * is any text, {a,b} one of these.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).parents[1] / "NIGHTLY.md"
ROW = re.compile(r"^([-+]) `([^`]+)`(?:: (\S.*))?$", re.M)


@dataclass(frozen=True)
class Row:
    """A row of the list."""

    by_name: bool  # this row marks the test, not the test's file
    name: str  # path below tests/, then the test's name
    why: str

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]

    @property
    def function(self) -> str:
        return self.name.partition("[")[0]

    def covers(self, test: str) -> bool:
        return pattern(self.name).fullmatch(test if self.by_name else test.partition("[")[0]) is not None


def rows() -> list[Row]:
    found = ROW.findall(LIST.read_text(encoding="utf-8"))
    return [Row(sign == "-", name, why) for sign, name, why in found]


def pattern(name: str) -> re.Pattern[str]:
    return re.compile("".join(map(translated, re.split(r"(\*|\{[^}]*\})", name))))


def translated(part: str) -> str:
    if part == "*":
        return ".*"
    if part.startswith("{"):
        return f"(?:{'|'.join(map(re.escape, part[1:-1].split(',')))})"
    return re.escape(part)
