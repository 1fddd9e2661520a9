"""How answers and lines about them look: dim and coloured where a terminal shows it, plain elsewhere.

What a model writes goes to a terminal with its control characters made visible, to a file or pipe as it is.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from typing import Protocol, TextIO

from satchel.cli.chat.thinking import ThinkingSplitter

RESET, BOLD, DIM = "\x1b[0m", "\x1b[1m", "\x1b[2m"
RED, YELLOW = "\x1b[31m", "\x1b[33m"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
BAR_WIDTH, NEARLY_FULL = 10, 0.8


@dataclass(frozen=True, slots=True)
class Look:
    """What a stream can show. unicode: more than ASCII; cursor: what was written can be written over."""

    terminal: bool = False
    colour: bool = False
    unicode: bool = True
    cursor: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> Look:
        terminal = stream.isatty()
        cursor = terminal and os.environ.get("TERM") not in (None, "", "dumb")
        colour = cursor and not os.environ.get("NO_COLOR")
        encoding = (getattr(stream, "encoding", None) or "").lower().replace("-", "")
        return cls(terminal, colour, encoding.startswith("utf"), cursor)

    def paint(self, text: str, style: str) -> str:
        """The text in a style, or alone. An empty text stays empty."""
        return f"{style}{text}{RESET}" if self.colour and text else text

    def safe(self, text: str) -> str:
        """Foreign text that cannot steer the terminal."""
        return CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}", text) if self.terminal else text

    def cut(self, text: str) -> str:
        """The text as far as one row of the terminal holds it; whole where there is none."""
        if not self.terminal:
            return text
        from rich.cells import cell_len, set_cell_size

        width = shutil.get_terminal_size().columns
        return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"

    def joined(self, parts: list[str]) -> str:
        return (" · " if self.unicode else " | ").join(part for part in parts if part)

    def meter(self, used: int, size: int) -> str:
        """How full the context is, as a bar and a share."""
        share = used / size if size else 1.0
        filled = min(BAR_WIDTH, -(-used * BAR_WIDTH // max(1, size)))
        full, empty = ("▰", "▱") if self.unicode else ("#", "-")
        return f"context {full * filled}{empty * (BAR_WIDTH - filled)} {share:.0%} of {size:,}"


class AnswerOutput(Protocol):
    """Takes the pieces of an answer as they are generated."""

    def begin(self, started: bool) -> None:
        """Says, before the first piece, whether the answer begins inside of a thinking."""

    def write(self, piece: str) -> None: ...

    def finish(self) -> None:
        """Writes what was held back."""


class AnswerWriter:
    """Writes an answer's pieces as they come, each flushed. started: the answer begins inside of <think>."""

    def __init__(self, stream: TextIO, look: Look, started: bool = False) -> None:
        self._stream, self._look = stream, look
        self._last = ""
        self.begin(started)

    def begin(self, started: bool) -> None:
        """Says, before the first piece, whether the answer begins inside of a thinking."""
        self._thinking = ThinkingSplitter(started)

    def write(self, piece: str) -> None:
        if self._look.colour:
            self._parts([*self._thinking.feed(piece)])
        else:
            self._put(self._look.safe(piece))

    def finish(self) -> None:
        """Writes what was held back, and a line end where the answer has none."""
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
