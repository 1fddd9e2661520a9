"""Terminal echo, turned off while an answer is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def silent(stream: TextIO) -> Iterator[None]:
    """Turns terminal echo off: keys pressed during an answer do not appear in it; the next
    prompt reads them.
    """
    try:
        import termios

        before = termios.tcgetattr(stream)
    except (ImportError, OSError, ValueError, termios.error):
        yield
        return
    try:
        after = list(before)
        after[3] &= ~termios.ECHO
        termios.tcsetattr(stream, termios.TCSADRAIN, after)
        yield
    finally:
        termios.tcsetattr(stream, termios.TCSADRAIN, before)
