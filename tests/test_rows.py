"""Every row of the list of malformed inputs has tests with its id, or a reason why it can't have any yet."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
ROWS = [*(f"G{n:02d}" for n in range(1, 26)), *(f"M{n:02d}" for n in range(1, 25))]
# What the program does not have, a malformed form of it can't reach.
ABSENT = {
    "M16": "adapters are converted and not run",
    "M17": "control vectors are not read",
    "M18": "images are not read",
    "M19": "no draft models",
    "M20": "the rows of chat templates have a list of their own",
    "M21": "sessions are not saved to files",
}


ID = re.compile(r"(?<![A-Za-z0-9])[GMgm]\d\d(?=[\W_])")


def rows_with_tests() -> set[str]:
    paths = (path for path in TESTS.rglob("test_*.py") if path != Path(__file__))
    return {found.upper() for path in paths for found in ID.findall(path.read_text(encoding="utf-8"))}


def test_every_row_is_tested() -> None:
    assert [row for row in ROWS if row not in rows_with_tests() and row not in ABSENT] == []


def test_what_is_said_to_be_absent_is_not_tested() -> None:
    """A reason that no longer holds must go."""
    assert [row for row in ABSENT if row in rows_with_tests()] == []
