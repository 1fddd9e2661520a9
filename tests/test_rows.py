"""Every row of the list of malformed inputs has tests with its id, or a reason why it can't have any yet."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
COUNTS = {"G": 25, "M": 24, "D": 12, "H": 23}
# Rows of hostile requests, files and environments that once broke this program.
ATTACKS = [f"A{n:02d}" for n in range(1, 21)]
ROWS = [*(f"{kind}{n:02d}" for kind, count in COUNTS.items() for n in range(1, count + 1)), *ATTACKS]
# Rows about features that the program does not have.
ABSENT = {
    "M18": "images are not read",
    "M20": "the rows of chat templates have a list of their own",
}


ID = re.compile(r"(?<![A-Za-z0-9])[GMDHAgmdha]\d\d(?=[\W_])")


@cache
def rows_with_tests() -> set[str]:
    paths = (path for path in TESTS.rglob("test_*.py") if path != Path(__file__))
    return {found.upper() for path in paths for found in ID.findall(path.read_text(encoding="utf-8"))}


def test_every_row_is_tested() -> None:
    assert [row for row in ROWS if row not in rows_with_tests() and row not in ABSENT] == []


def test_what_is_said_to_be_absent_is_not_tested() -> None:
    """An outdated reason must be removed."""
    assert [row for row in ABSENT if row in rows_with_tests()] == []
