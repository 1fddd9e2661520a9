"""How an answer looks in a notebook: HTML that a display shows and updates while the answer grows.

The text of a model is never trusted. Markdown becomes HTML through markdown-it, which escapes HTML in the
text and refuses `javascript:` links; images stay links, so that showing an answer opens no address.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

EVERY = 0.1  # seconds between two updates of a display
WRAPPED = "white-space:pre-wrap;overflow-wrap:anywhere"
FAINT = "opacity:.65;font-size:.85em"


@cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    made = MarkdownIt("commonmark", {"html": False, "breaks": True})
    return made.enable(["table", "strikethrough"]).disable("image")


def markdown(text: str) -> str:
    """HTML of a Markdown text."""
    return str(_markdown().render(text))


def plain(text: str) -> str:
    """HTML of a text that is no Markdown, with its spaces and line breaks."""
    return f'<pre style="{WRAPPED}">{escape(text)}</pre>'


def folded(title: str, text: str, opened: bool = False) -> str:
    """HTML of a text that is hidden until the reader opens it."""
    return f"<details{' open' if opened else ''}><summary>{escape(title)}</summary>{plain(text)}</details>"


def faint(text: str) -> str:
    """HTML of a remark below an answer."""
    return f'<div style="{FAINT}">{escape(text)}</div>'


def table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """HTML of a table of two columns."""
    lines = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table><caption>{escape(title)}</caption><tbody>{lines}</tbody></table>"


def in_notebook() -> bool:
    """Whether the program runs in a kernel of IPython, whose displays can be updated."""
    ipython: Any = sys.modules.get("IPython")
    return hasattr(ipython.get_ipython(), "kernel") if ipython is not None else False


class PrintedAnswer:
    """An answer on stdout. text: its beginning."""

    def __init__(self, text: str) -> None:
        self.grow(text)

    def grow(self, piece: str) -> None:
        print(piece, end="", flush=True)

    def finish(self) -> None:
        print()


class LiveDisplay:
    """A display of a notebook that is updated. look: gives the HTML and the text of the moment."""

    def __init__(self, look: Callable[[], tuple[str, str]]) -> None:
        from IPython.display import display

        self._look, self._shown = look, time.monotonic()
        self._handle = display(self._bundle(), raw=True, display_id=True)

    def grow(self, piece: str) -> None:
        """Updates the display, unless that was done less than EVERY seconds ago."""
        if time.monotonic() - self._shown >= EVERY:
            self.finish()

    def finish(self) -> None:
        """Updates the display."""
        self._handle.update(self._bundle(), raw=True)
        self._shown = time.monotonic()

    def _bundle(self) -> dict[str, str]:
        html, text = self._look()
        return {"text/html": html, "text/plain": text}


def display_of(look: Callable[[], tuple[str, str]], text: str) -> LiveDisplay | PrintedAnswer:
    """What shows an answer here. text: what there is of it."""
    return LiveDisplay(look) if in_notebook() else PrintedAnswer(text)


def shortened(text: str, most: int = 60) -> str:
    """The repr of a text's beginning."""
    return repr(text if len(text) <= most else text[: most - 3] + "...")


def counted(number: int, name: str) -> str:
    """A number and the name of what it counts: 1 token, 2 tokens."""
    return f"{number} {name}{'' if number == 1 else 's'}"


def joined(parts: Sequence[str]) -> str:
    """The parts that are not empty, with commas between them."""
    return ", ".join(part for part in parts if part)
