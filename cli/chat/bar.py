"""A delayed progress bar: work that ends within half a second shows none and does not import rich."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TextIO

from satchel.cli.console import plain

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

DELAY = 0.5  # seconds before the bar appears
Progressed = Callable[[int, int], None]


@contextmanager
def late_bar(label: str, stream: TextIO, *, in_bytes: bool = False) -> Iterator[Progressed]:
    """Yields a function that takes (done, total), in bytes or tokens. No bar where the stream is not a
    terminal.

    The bar is removed when done reaches total or the block ends.
    """
    with ExitStack() as stack:
        yield _watcher(label, stream, in_bytes, stack) if stream.isatty() else lambda done, total: None


def _watcher(label: str, stream: TextIO, in_bytes: bool, stack: ExitStack) -> Progressed:
    started = time.monotonic()
    shown: list[tuple[Progress, TaskID]] = []

    def progressed(done: int, total: int) -> None:
        if done >= total:
            stack.close()
            return
        if not shown and time.monotonic() - started > DELAY:
            bar = stack.enter_context(_bar(stream, in_bytes))
            shown.append((bar, bar.add_task(plain(label), total=total)))
        for bar, task in shown:
            bar.update(task, completed=done, total=total)

    return progressed


def _bar(stream: TextIO, in_bytes: bool) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    count = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), count, TimeRemainingColumn())
    return Progress(*columns, console=Console(file=stream), transient=True)
