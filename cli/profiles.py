"""A profile as rows, and its tables as `satchel bench --profile` prints them.

The rows of part "op" add up to the row "all steps" of part "sum", and so do those of part "weights". Part
"sum" also has the time outside of steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from satchel.cli.tables import MARKDOWN_PROFILE, NUMBERS, Row, writer

if TYPE_CHECKING:
    from satchel.runtime.device.peaks import DevicePeaks
    from satchel.runtime.tasks.bench import Test
    from satchel.runtime.tasks.profile import Profile, ProfileLine

HEADS = {"op": "By op", "weights": "By op and weights", "sum": "In all"}


def rows(found: Profile, peaks: DevicePeaks, read: float | None) -> Iterator[dict[str, Any]]:
    """All rows of a test, in display order. read: bytes/s at which the devices can read the test's weights;
    None if unknown.
    """
    both = {
        "memory_gb_per_second": peaks.read and peaks.read / 1e9,
        "limit_gb_per_second": read and read / 1e9,
        **{f"{name}_gmac_per_second": peaks.giga(name) for name in NUMBERS},
    }

    def row(part: str, op: str, weights: str, line: ProfileLine) -> dict[str, Any]:
        return {"test": found.test.name, **numbers(found, part, op, weights, line, peaks, read), **both}

    for op, line in sorted(found.by_op().items(), key=lambda item: -item[1].seconds):
        yield row("op", op, "", line)
    for (op, weights), line in sorted(found.lines.items(), key=lambda item: -item[1].seconds):
        yield row("weights", op, weights, line)
    for name, line in found.sums().items():
        yield row("sum", name, "", line)


def numbers(
    found: Profile,
    part: str,
    op: str,
    weights: str,
    line: ProfileLine,
    peaks: DevicePeaks,
    read: float | None,
) -> dict[str, Any]:
    """The numbers of one row. Rates are None for ops without products."""
    cost, seconds = line.cost, line.seconds
    timed = bool(cost.total) and seconds > 0
    return {
        "part": part,
        "op": op,
        "weights": weights,
        "numbers": "+".join(sorted(cost.macs)),
        "calls_per_token": line.calls / found.tokens,
        "us_per_token": seconds / found.tokens * 1e6,
        "share": seconds / found.whole,
        "bytes_per_token": cost.bytes / found.tokens,
        "macs_per_token": cost.total / found.tokens,
        "gb_per_second": cost.bytes / seconds / 1e9 if timed else None,
        "gmac_per_second": cost.total / seconds / 1e9 if timed else None,
        "macs_per_byte": cost.total / cost.bytes if cost.total else None,
        "share_of_roof": line.share_of_roof(peaks, read),
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
