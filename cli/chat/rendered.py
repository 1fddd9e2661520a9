"""Renders an answer as Markdown while it streams: complete blocks are printed once, only the last block is
redrawn. In a fenced code block each complete line is printed once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TextIO

from satchel.cli.chat.display import DIM, Look
from satchel.cli.chat.live import Live, Size, terminal_size
from satchel.cli.chat.markdown import Painter, beginning, lines_of
from satchel.cli.chat.thinking import ThinkingSplitter

PERIOD = 1 / 30  # seconds between two redraws, at least
SHARE = 10  # redraws pause for at least this multiple of the time that the last one took


@dataclass(slots=True)
class Fence:
    """An open fenced code block."""

    marker: str
    language: str
    code: str = ""  # its complete lines so far
    shown: int = 0  # lines of `code` that are printed

    def closed_by(self, line: str) -> bool:
        mark = line.strip()
        indent = len(line) - len(line.lstrip(" "))
        return indent < 4 and len(mark) >= len(self.marker) and not mark.strip(self.marker[0])


class MarkdownWriter:
    """An AnswerOutput that renders Markdown. Thinking is shown dim and unrendered."""

    def __init__(self, stream: TextIO, look: Look, size: Size | None = None) -> None:
        self._stream, self._look = stream, look
        self._size = size or (lambda: terminal_size(stream))
        self._painter, self._live = Painter(colour=look.colour), Live(stream, self._size)
        self._open = ""  # text that is not printed yet, or only in the live region
        self._fence: Fence | None = None
        self._printed = False
        self._thought = ""
        self._next = 0.0
        self.begin()

    def begin(self, started: bool = False) -> None:
        """Called before the first piece. started: the answer begins inside a thinking block."""
        self._thinking = ThinkingSplitter(started)

    def write(self, piece: str) -> None:
        for text, thought in self._thinking.feed(piece):
            self._take(self._look.safe(text), thought)
        now = time.monotonic()
        if now >= self._next:
            self._draw()
            after = time.monotonic()
            self._next = after + max(PERIOD, SHARE * (after - now))

    def finish(self) -> None:
        """Prints the rest."""
        for text, thought in self._thinking.flush():
            self._take(self._look.safe(text), thought)
        self._draw(last=True)
        if self._thought and not self._thought.endswith("\n"):
            self._stream.write("\n")
        self._stream.flush()

    def _take(self, text: str, thought: bool) -> None:
        if thought:
            self._stream.write(self._look.paint(text, DIM))
            self._stream.flush()
            self._thought += text
            return
        if not self._open and not self._printed and self._fence is None:
            text = text.lstrip("\n")
            if text and self._thought:
                self._stream.write("\n" if self._thought.endswith("\n") else "\n\n")
                self._thought = "\n"
        self._open += text

    def _draw(self, last: bool = False) -> None:
        """Prints complete blocks, and redraws the rest."""
        if last and self._open.strip() and not self._open.endswith("\n"):
            self._open += "\n"
        done: list[str] = []
        while self._code(self._fence, done) if self._fence else self._block(done):
            pass
        width = self._size()[0]
        if self._fence is not None:
            rest = self._painter.wrapped(self._open, width)
        else:
            rest = self._apart(self._painter.blocks(self._open, width))
        if last:
            self._live.draw([*done, *rest], [])
        else:
            self._live.draw(done, rest)

    def _block(self, done: list[str]) -> bool:
        """Moves complete blocks from the open text to `done`. False where there are none."""
        found = beginning(self._open)
        text, self._open = self._open[: found.length], self._open[found.length :]
        if found.fence:
            self._fence = Fence(found.fence, found.language)
            done += self._apart([self._painter.dim(text.strip())])
            self._printed = True
        elif text.strip():
            done += self._apart(self._painter.blocks(text, self._size()[0]))
            self._printed = True
        return bool(text)

    def _code(self, fence: Fence, done: list[str]) -> bool:
        """Moves complete lines of a fenced block to `done`. True where the block ended."""
        lines = lines_of(self._open)
        while lines and lines[0].endswith("\n"):
            line = lines.pop(0)
            if fence.closed_by(line):
                done += [*self._fresh(fence), self._painter.dim(line.strip())]
                self._fence, self._open = None, "".join(lines)
                return True
            fence.code += line
        done += self._fresh(fence)
        self._open = "".join(lines)
        return False

    def _fresh(self, fence: Fence) -> list[str]:
        """The lines of code that are not printed yet."""
        lines = self._painter.code(fence.code, fence.language) if fence.code.count("\n") > fence.shown else []
        found, fence.shown = lines[fence.shown :], fence.code.count("\n")
        return found

    def _apart(self, lines: list[str]) -> list[str]:
        """The lines, with an empty line in front where text is printed above them."""
        return ["", *lines] if lines and self._printed else lines
