"""A live region at the bottom of the terminal: lines above it are final, its own lines are redrawn from the
first one that changed. Each change is one write, so nothing flickers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TextIO

from rich.cells import cell_len

STYLE = re.compile(r"\x1b\[[\d;]*m")
BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"  # synchronized output: the terminal shows all between them at once
START, CLEAR_ROW, UP = "\r", "\x1b[2K", "\x1b[A"
SMALLEST = 4, 2  # the smallest number of columns and rows for the layout

Size = Callable[[], tuple[int, int]]


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """(columns, rows) of the stream's terminal."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns, rows = 80, 24
    if not columns or not rows:  # a pseudo-terminal without a size
        columns, rows = 80, 24
    return max(SMALLEST[0], columns), max(SMALLEST[1], rows)


class Live:
    """The live region. The cursor is after its last line."""

    def __init__(self, stream: TextIO, size: Size) -> None:
        self._stream, self._size = stream, size
        self._shown: list[str] = []

    def draw(self, done: Sequence[str], open_lines: Sequence[str]) -> None:
        """Writes `done` above the region for good, and shows as many of the last `open_lines` as fit the
        screen.
        """
        columns, rows = self._size()
        shown = self._shown
        kept = _fitting(open_lines, columns, rows - 1)
        new = [*done, *kept]
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(shown, new, strict=False)))
        if same == len(new) < len(shown):  # redraw the last line, so that the cursor ends after it
            same = max(0, same - 1)
        self._shown = kept
        if same == len(shown) == len(new) and kept:
            return
        out = _erased(shown[same:], columns)
        if same and same == len(shown) and new[same:]:
            out += "\n"
        out += "\n".join(new[same:])
        if new and not kept:
            out += "\n"
        if out:
            self._stream.write(f"{BEGIN}{out}{END}")
            self._stream.flush()


def _fitting(lines: Sequence[str], columns: int, rows: int) -> list[str]:
    """The last lines that fit into `rows` rows."""
    kept: list[str] = []
    left = rows
    for line in reversed(lines):
        left -= height(line, columns)
        if left < 0:
            break
        kept.append(line)
    return kept[::-1]


def _erased(lines: Sequence[str], columns: int) -> str:
    """The codes that erase the lines, row by row from the last to the first. Some terminals scroll a screen
    that is cleared from its top into the scrollback, so the rows are erased one by one.
    """
    rows = sum(height(line, columns) for line in lines)
    return START + UP.join([CLEAR_ROW] * rows) if rows else ""


def height(line: str, columns: int) -> int:
    """Rows that a line takes at this width, also if it was laid out for a wider terminal."""
    return max(1, -(-cell_len(STYLE.sub("", line)) // columns))
