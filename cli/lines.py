"""Lines of a fixed width: the one place that cuts and wraps them.

rich is imported at first need: the help is printed without it.
"""

from __future__ import annotations

import textwrap

WIDTH = 80  # columns of the help
EXAMPLES = "Examples:"


def wrapped(text: str, width: int = WIDTH) -> list[str]:
    """The lines of a paragraph."""
    return textwrap.wrap(text, width, break_on_hyphens=False)


def at_word(text: str, width: int) -> str:
    """The text whole, or to the last word that fits. Runs of spaces become one."""
    return text if len(text) <= width else textwrap.shorten(text, width, placeholder="…")


def at_column(text: str, width: int) -> str:
    """The text whole, or as much of it as fits into so many columns of a terminal."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"
