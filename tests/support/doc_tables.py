"""Markdown that the generators of docs write: tables, and the parts of a page between two marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table. `|` in a cell is escaped."""
    yield f"| {' | '.join(heads)} |".replace("  ", " ")
    yield f"| {' | '.join('---' for _ in heads)} |"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def code(text: str) -> str:
    """The text as code; a dash where there is none."""
    return f"`{text}`" if text else "–"


def replaced(page: str, begin: str, part: str, end: str) -> str:
    """The page with another part between its two marks."""
    before, _, rest = page.partition(begin)
    return f"{before}{begin}{part}{end}{rest.partition(end)[2]}"
