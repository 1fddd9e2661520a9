"""A profile as rows, and its tables as `satchel bench --profile` prints them.

Rows of part "op" add up to the row "all steps" of part "sum", and so do those of part "weights"; beside it
stands what no step accounts for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from satchel.cli.tables import MARKDOWN_PROFILE, NUMBERS, Row, writer

if TYPE_CHECKING:
    from satchel.runtime.bench import Test
    from satchel.runtime.limits import Limits
    from satchel.runtime.profile import Line, Profile

HEADS = {"op": "By op", "weights": "By op and weights", "sum": "In all"}


def rows(found: Profile, limits: Limits, read: float | None) -> Iterator[dict[str, Any]]:
    """All rows of a test, in the order in which they are shown. read: bytes a second at which its devices can
    read what it reads; None where that is not known.
    """
    both = {
        "memory_gb_per_second": limits.read and limits.read / 1e9,
        "limit_gb_per_second": read and read / 1e9,
        **{f"{name}_gmac_per_second": limits.giga(name) for name in NUMBERS},
    }

    def row(part: str, op: str, weights: str, line: Line) -> dict[str, Any]:
        return {"test": found.test.name, **numbers(found, part, op, weights, line, limits, read), **both}

    for op, line in sorted(found.by_op().items(), key=lambda item: -item[1].seconds):
        yield row("op", op, "", line)
    for (op, weights), line in sorted(found.lines.items(), key=lambda item: -item[1].seconds):
        yield row("weights", op, weights, line)
    for name, line in found.sums().items():
        yield row("sum", name, "", line)


def numbers(
    found: Profile, part: str, op: str, weights: str, line: Line, limits: Limits, read: float | None
) -> dict[str, Any]:
    """One line's numbers; rates are None where nothing is multiplied."""
    work, seconds = line.work, line.seconds
    timed = bool(work.total) and seconds > 0
    return {
        "part": part,
        "op": op,
        "weights": weights,
        "numbers": "+".join(sorted(work.macs)),
        "calls_per_token": line.calls / found.tokens,
        "us_per_token": seconds / found.tokens * 1e6,
        "share": seconds / found.whole,
        "bytes_per_token": work.bytes / found.tokens,
        "macs_per_token": work.total / found.tokens,
        "gb_per_second": work.bytes / seconds / 1e9 if timed else None,
        "gmac_per_second": work.total / seconds / 1e9 if timed else None,
        "macs_per_byte": work.total / work.bytes if work.total else None,
        "share_of_roof": line.share_of_roof(limits, read),
    }


def show(test: Test, about: Row, found: Sequence[Row]) -> None:
    """The tables of one test as Markdown."""
    print(f"## {about['model']}, {about['threads']} threads: {test.name}")
    for part, head in HEADS.items():
        print(f"\n{head}\n")
        table = writer("md", MARKDOWN_PROFILE)
        for row in found:
            if row["part"] == part:
                table.row(row)
    print()
