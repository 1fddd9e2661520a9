"""The end of what a terminal shows, which is still being written: lines above it stay for good, its own are
drawn again from the first that changed. One write per change, so nothing flickers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TextIO

from rich.cells import cell_len

STYLE = re.compile(r"\x1b\[[\d;]*m")
BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"  # a terminal that knows these shows all between at once
START, CLEAR_ROW, UP = "\r", "\x1b[2K", "\x1b[A"
SMALLEST = 4, 2  # columns and rows below which nothing is laid out any more

Size = Callable[[], tuple[int, int]]


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Columns and rows of the terminal behind a stream."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns, rows = 80, 24
    if not columns or not rows:  # a pseudo-terminal that nobody gave a size
        columns, rows = 80, 24
    return max(SMALLEST[0], columns), max(SMALLEST[1], rows)


class Live:
    """Lines at the bottom that may still change. The cursor stands behind the last one."""

    def __init__(self, stream: TextIO, size: Size) -> None:
        self._stream, self._size = stream, size
        self._shown: list[str] = []

    def draw(self, done: Sequence[str], open_lines: Sequence[str]) -> None:
        """`done` goes above for good; of `open_lines` the last are shown, as many as the screen holds."""
        columns, rows = self._size()
        shown = self._shown
        kept = _fitting(open_lines, columns, rows - 1)
        new = [*done, *kept]
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(shown, new, strict=False)))
        if same == len(new) < len(shown):  # the cursor must come to stand behind the last line
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
    """The last lines that fit into so many rows."""
    kept: list[str] = []
    left = rows
    for line in reversed(lines):
        left -= height(line, columns)
        if left < 0:
            break
        kept.append(line)
    return kept[::-1]


def _erased(lines: Sequence[str], columns: int) -> str:
    """From behind the last line to the start of the first, row by row: some terminals take a screen that is
    cleared from its first place for one that should be kept above.
    """
    rows = sum(height(line, columns) for line in lines)
    return START + UP.join([CLEAR_ROW] * rows) if rows else ""


def height(line: str, columns: int) -> int:
    """Rows that a line takes, also one that was laid out for a wider terminal."""
    return max(1, -(-cell_len(STYLE.sub("", line)) // columns))
