"""Progress on stderr. Of counted work: a bar on a terminal, elsewhere a line per tenth of the work. Of other
work: a spinner with the seconds on a terminal.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from satchel.cli.console import err, note, plain

DELAY = 2.0  # seconds of uncounted work without a spinner
T = TypeVar("T")
Counted = Callable[[int, int, str], None]  # (steps done, all steps, what is done now or was found so far)


class Tenths:
    """Tells at each new tenth of the work how long the rest takes."""

    def __init__(self) -> None:
        self.total = self.tenth = 0
        self.begun = time.monotonic()

    def left(self, done: int, total: int) -> float | None:
        """Seconds that are left, where `done` of `total` reaches a new tenth. Another total starts anew."""
        if done == 0 or total != self.total:
            self.begun = time.monotonic() if self.total else self.begun
            self.total, self.tenth = total, 0
        tenth = 10 * done // max(1, total)
        if tenth <= self.tenth:
            return None
        self.tenth = tenth
        return (time.monotonic() - self.begun) / done * (total - done)


@contextmanager
def counted(label: str) -> Iterator[Counted]:
    """Shows the progress of the block, which calls the yielded function after each step."""
    console, tenths = err(), Tenths()

    def line(done: int, total: int, what: str) -> None:
        left = tenths.left(done, total)
        if left is not None:
            note(f"{label}: {done}/{total} {what}, {left:.0f} s left")

    if not console.is_terminal:
        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    text = TextColumn("{task.description}", markup=False, table_column=Column())  # wraps where it is narrow
    columns = (text, BarColumn(24), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(plain(label), total=None)
        yield lambda done, total, what: bar.update(
            task, completed=done, total=total, description=plain(f"{label}: {what}" if what else label)
        )


@contextmanager
def working(label: str) -> Iterator[None]:
    """Shows a spinner and the seconds while the block runs, once it has run for DELAY. The block must not
    write to the terminal.
    """
    console = err()
    if not console.is_terminal or console.is_dumb_terminal:
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}", markup=False)
    shown = Progress(SpinnerColumn(), text, TimeElapsedColumn(), console=console, transient=True)
    shown.add_task(plain(label), total=None)
    timer = threading.Timer(DELAY, shown.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        shown.stop()


def awaited(found: Iterable[T], label: str) -> Iterator[T]:
    """The items as they come, with a spinner while the next one is computed."""
    items, end = iter(found), object()
    while True:
        with working(label):
            item = next(items, end)
        if item is end:
            return
        yield item  # type: ignore[misc]
