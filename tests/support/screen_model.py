"""A minimal terminal emulator for tests of streamed output: lines, wrapping, cursor up, erased rows."""

from __future__ import annotations

import re

from rich.cells import cell_len

PART = re.compile(r"\x1b\[(\?2026[hl]|2K|A|[\d;]*m)|(\x1b.?)|([\r\n])|([^\x1b\r\n])")


class ScreenModel:
    """Rows of text. A row that has scrolled off the screen can't be changed any more."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines: list[str] = [""]
        self.row = self.column = 0

    def feed(self, text: str) -> None:
        for code, unknown, control, letter in PART.findall(text):
            assert not unknown, f"an escape sequence that is not expected: {unknown!r}"
            if code == "A":
                assert self.row > max(0, len(self.lines) - self.rows), "above the first row of the screen"
                self.row -= 1
            elif code == "2K":
                self.lines[self.row] = ""
            elif control == "\r":
                self.column = 0
            elif control == "\n":
                self._down()
            elif letter:
                self._put(letter)

    def _put(self, letter: str) -> None:
        if self.column == 0:
            assert not self.lines[self.row], "written over what was there"
        if cell_len(self.lines[self.row] + letter) > self.columns:
            self._down()
        self.lines[self.row] += letter
        self.column += 1

    def _down(self) -> None:
        self.row += 1
        self.column = 0
        if self.row == len(self.lines):
            self.lines.append("")

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines).rstrip("\n")
