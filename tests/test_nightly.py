"""NIGHTLY.md is the exact list of the tests that run by night only, and it is short."""

from __future__ import annotations

from pathlib import Path

import pytest
from nightly import LIST, Row, pattern, rows

HERE = Path(__file__).parent
MOST = 0.05  # of all tests
VOCABULARIES = (HERE.parents[1] / "shared").is_dir()  # the larger test data; some parameters are its files
Names = list[tuple[str, bool]]


@pytest.fixture(scope="module")
def names(collected: Names) -> Names:
    """All tests, and whether each runs by night only."""
    files = {path.relative_to(HERE).as_posix() for path in HERE.rglob("test_*.py")}
    missing = files - {name.partition("::")[0] for name, _ in collected}
    if len(missing) > len(files) / 10:  # a file whose library is absent is skipped as a whole
        pytest.skip("only a part of the tests was collected")
    return collected


def test_every_test_by_night_is_listed(names: Names) -> None:
    listed: dict[str, list[Row]] = {}
    for row in rows():
        listed.setdefault(row.file, []).append(row)
    by_night = [name for name, marked in names if marked]
    assert [n for n in by_night if not any(r.covers(n) for r in listed.get(n.partition("::")[0], ()))] == []


def test_what_is_listed_is_there(names: Names) -> None:
    """Parameters may be missing with the larger test data; the functions must exist, or their file must be
    missing.
    """
    files = {name.partition("::")[0] for name, _ in names}
    functions = {name.partition("[")[0] for name, _ in names}
    assert [r.name for r in rows() if r.file in files and r.function not in functions] == []
    marked = {name.partition("[")[0] for name, by_night in names if by_night}
    bare = {name.partition("[")[0] for name, _ in names if "NOTSET" in name or "[" not in name}
    there = [r for r in rows() if r.file in files and (VOCABULARIES or "ggml-vocab" not in r.name)]
    assert [r.name for r in there if r.function not in marked | bare] == []


def test_each_row_has_its_reason() -> None:
    lines = [line for line in LIST.read_text(encoding="utf-8").splitlines() if line.startswith(("- ", "+ "))]
    assert len(lines) == len(rows()) == len({row.name for row in rows()})
    assert [row.name for row in rows() if not row.why] == []


def test_few_tests_are_by_night(names: Names) -> None:
    assert sum(by_night for _, by_night in names) <= MOST * len(names)


@pytest.mark.parametrize(
    ("row", "name", "covered"),
    [
        ("a.py::t[x-*]", "a.py::t[x-1]", True),
        ("a.py::t[x-*]", "a.py::t[y-1]", False),
        ("a.py::t[{x,y z}-1]", "a.py::t[y z-1]", True),
        ("a.py::t[{x,y}-1]", "a.py::t[xy-1]", False),
        ("a.py::t", "a.py::t[1]", False),
    ],
)
def test_names_are_matched(row: str, name: str, covered: bool) -> None:
    assert (pattern(row).fullmatch(name) is not None) == covered
