"""Options of the benches that are lists of numbers."""

from __future__ import annotations


def numbers(text: str) -> list[int]:
    """The numbers of an option's text, with commas between them, as in "1,16,64"; 0 stands for none."""
    return [int(part) for part in text.split(",") if part and int(part) > 0]
