"""The output of quantization: a progress bar with the current tensor, and a table by kind of tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from satchel.cli.console import note, plain
from satchel.cli.progress import Tenths

if TYPE_CHECKING:
    from rich.console import Console

    from satchel.formats.quantize import QuantizeReport, TensorPlan

Advance = Callable[[int], None]
Started = Callable[["TensorPlan"], None]


@contextmanager
def shown(console: Console, total: int, tensors: int) -> Iterator[tuple[Advance, Started]]:
    """A bar over `total` bytes; gives what takes bytes written, and what takes each tensor as it begins.

    The first tensor may wait for the encoders to be compiled: the bar says so and shows that time passes.
    Without a terminal there is a line for each tenth.
    """
    if not console.is_terminal:
        yield _lines(total)
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    text = TextColumn("{task.description}", markup=False)
    bar = Progress(
        text,
        BarColumn(24),
        DownloadColumn(),
        TimeElapsedColumn(),
        Remaining(),
        console=console,
        transient=True,
    )
    count = 0
    with bar:
        task = bar.add_task("preparing the encoders", total=total)

        def started(choice: TensorPlan) -> None:
            nonlocal count
            count += 1
            what = f"{count}/{tensors} {choice.name} {choice.target}"
            if choice.changed and bar.tasks[0].completed == 0:
                what += " (compiling)"
            bar.update(task, description=plain(what))

        yield lambda n: bar.advance(task, n), started


def _lines(total: int) -> tuple[Advance, Started]:
    tenths, done = Tenths(), 0

    def advance(n: int) -> None:
        nonlocal done
        done += n
        left = tenths.left(done, total)
        if left is not None and done < total:
            note(f"{10 * tenths.tenth} % written, {left:.0f} s left")

    return advance, lambda choice: None


def print_table(console: Console, report: QuantizeReport) -> None:
    """One line per kind of tensor (its name without the layer's number), then the totals."""
    from rich.table import Table

    table = Table("tensors", "number", "formats", "MB before", "MB after", "bits/weight", "error", box=None)
    for column in (table.columns[1], *table.columns[3:]):
        column.justify = "right"
    kinds: dict[str, list[TensorPlan]] = {}
    for choice in report.choices:
        kinds.setdefault(kind_of(choice.name), []).append(choice)
    for kind, choices in kinds.items():
        table.add_row(*_cells(kind, choices, report))
    totals = (
        f"{report.bytes_before / 1e6:.2f}",
        f"{report.bytes_after / 1e6:.2f}",
        f"{report.bits_per_weight:.2f}",
    )
    table.add_row("all", str(len(report.choices)), "", *totals, "")
    console.print(table)


def _cells(kind: str, choices: list[TensorPlan], report: QuantizeReport) -> list[str]:
    formats = Counter(choice.target for choice in choices)
    before, after = sum(c.bytes_before for c in choices), sum(c.bytes_after for c in choices)
    errors = [report.errors[c.name] for c in choices if c.name in report.errors]
    return [
        plain(kind),
        str(len(choices)),
        ", ".join(f"{name} x{n}" if len(formats) > 1 else name for name, n in formats.items()),
        f"{before / 1e6:.2f}",
        f"{after / 1e6:.2f}",
        f"{8 * after / max(1, sum(c.elements for c in choices)):.2f}",
        f"{max(errors):.4f}" if errors else "",
    ]


def kind_of(name: str) -> str:
    parts = name.split(".")
    short = parts[2:] if parts[0] == "blk" and len(parts) > 2 else parts
    return ".".join(short).removesuffix(".weight")
