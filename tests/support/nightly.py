"""NIGHTLY.md, the list of tests that run by night: rows that begin with - are marked by their names, those
with + in their files. Each row is a name, in which * is any text and {a,b} one of these, and a reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).parents[1] / "NIGHTLY.md"
ROW = re.compile(r"^([-+]) `([^`]+)`(?:: (\S.*))?$", re.M)


@dataclass(frozen=True)
class Row:
    """by_name: marked because it stands here. name: path from the folder of the tests, then the test's."""

    by_name: bool
    name: str
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
