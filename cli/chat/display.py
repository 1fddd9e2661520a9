"""Styles for answers and status lines: dim and coloured on a terminal, plain elsewhere.

A model's output goes to a terminal with control characters escaped, to a file or pipe unchanged.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from typing import Protocol, TextIO

from satchel.cli.chat.thinking import ThinkingSplitter
from satchel.cli.lines import at_column

RESET, BOLD, DIM = "\x1b[0m", "\x1b[1m", "\x1b[2m"
RED, YELLOW = "\x1b[31m", "\x1b[33m"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
BAR_WIDTH, NEARLY_FULL = 10, 0.8


@dataclass(frozen=True, slots=True)
class Look:
    """The capabilities of an output stream."""

    terminal: bool = False
    colour: bool = False
    unicode: bool = True  # more than ASCII
    cursor: bool = False  # the cursor can be moved, so that written lines can be redrawn

    @classmethod
    def of(cls, stream: TextIO) -> Look:
        terminal = stream.isatty()
        cursor = terminal and os.environ.get("TERM") not in (None, "", "dumb")
        colour = cursor and not os.environ.get("NO_COLOR")
        encoding = (getattr(stream, "encoding", None) or "").lower().replace("-", "")
        return cls(terminal, colour, encoding.startswith("utf"), cursor)

    def paint(self, text: str, style: str) -> str:
        """The text in a style where the stream has colours. An empty text stays empty."""
        return f"{style}{text}{RESET}" if self.colour and text else text

    def safe(self, text: str) -> str:
        """Untrusted text with control characters escaped for a terminal."""
        return CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}", text) if self.terminal else text

    def cut(self, text: str) -> str:
        """The text truncated to one row of the terminal; whole where the stream is not a terminal."""
        return at_column(text, shutil.get_terminal_size().columns) if self.terminal else text

    def joined(self, parts: list[str]) -> str:
        return (" · " if self.unicode else " | ").join(part for part in parts if part)

    def meter(self, used: int, size: int) -> str:
        """The fill level of the context as a bar and a percentage."""
        share = used / size if size else 1.0
        filled = min(BAR_WIDTH, -(-used * BAR_WIDTH // max(1, size)))
        full, empty = ("▰", "▱") if self.unicode else ("#", "-")
        return f"context {full * filled}{empty * (BAR_WIDTH - filled)} {share:.0%} of {size:,}"


class AnswerOutput(Protocol):
    """A sink for the pieces of an answer as they are generated."""

    def begin(self, started: bool) -> None:
        """Called before the first piece. started: the answer begins inside a thinking block."""

    def write(self, piece: str) -> None: ...

    def finish(self) -> None:
        """Writes the pieces that were held back."""


class AnswerWriter:
    """Writes each piece of an answer at once. started: the answer begins inside a thinking block."""

    def __init__(self, stream: TextIO, look: Look, started: bool = False) -> None:
        self._stream, self._look = stream, look
        self._last = ""
        self.begin(started)

    def begin(self, started: bool) -> None:
        """Called before the first piece. started: the answer begins inside a thinking block."""
        self._thinking = ThinkingSplitter(started)

    def write(self, piece: str) -> None:
        if self._look.colour:
            self._parts([*self._thinking.feed(piece)])
        else:
            self._put(self._look.safe(piece))

    def finish(self) -> None:
        """Writes the pieces that were held back, and a newline where the answer does not end with one."""
        if self._look.colour:
            self._parts([*self._thinking.flush()])
        if self._last and not self._last.endswith("\n"):
            self._put("\n")

    def _parts(self, parts: list[tuple[str, bool]]) -> None:
        for text, dim in parts:
            self._put(self._look.safe(text), DIM if dim else "")

    def _put(self, text: str, style: str = "") -> None:
        self._stream.write(self._look.paint(text, style) if style else text)
        self._stream.flush()
        self._last = text or self._last
