"""Console output of the commands: results go to stdout, the rest to stderr; untrusted text is escaped.

rich is imported at first use, so that a command without tables does not pay for it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 1000  # columns of tables in a pipe, so that nothing is truncated


@functools.cache
def out() -> Console:
    """The console of stdout, for tables. Plain text with NO_COLOR or where stdout is not a terminal."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


@functools.cache
def err() -> Console:
    """The console of stderr, for progress and notes."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def note(text: str) -> None:
    """Writes a line to stderr without importing rich."""
    print(plain(text), file=sys.stderr, flush=True)


def warn(text: str) -> None:
    note(f"satchel: warning: {text}")


def plain(text: str) -> str:
    """The text with control characters escaped, except newlines and tabs."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr for the block, which calls the yielded function with the bytes of each write.

    Where stderr is not a terminal there is no bar, and rich is not imported.
    """
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err(), transient=True) as bar:
        task = bar.add_task(plain(label), total=total)
        yield lambda count: bar.advance(task, count)
