"""The known name that a misspelt one was most likely meant to be, by difflib, and the words of that hint."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LIKE = 0.6  # difflib's ratio from which on two names are similar


def closest(wrong: str, known: Iterable[str], least: float = LIKE) -> str:
    """The most similar of the known names; "" where none has the least ratio, from 0 to 1."""
    return next(iter(difflib.get_close_matches(wrong, list(known), 1, least)), "")


def did_you_mean(wrong: str, known: Iterable[str], shown: str = "{}", least: float = LIKE) -> str:
    """`did you mean X?` of the most similar of the known names; "" where there is none. shown: how a name is
    written there, such as "[{}]".
    """
    near = closest(wrong, known, least)
    return f"did you mean {shown.format(near)}?" if near else ""
