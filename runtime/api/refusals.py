"""Requests that are refused for a reason a program can act on: each has its numbers beside its line."""

from __future__ import annotations

from satchel.errors import RequestError


class PromptTooLong(RequestError):
    """The prompt needs more tokens than there is room for. prompt, room: tokens."""

    def __init__(self, prompt: int, room: int, line: str) -> None:
        super().__init__(line)
        self.prompt, self.room = prompt, room


class Busy(RequestError):
    """It can be had a little later: others use what it needs."""


class QueueFull(RequestError):
    """So many requests wait that no other may. waiting: how many."""

    def __init__(self, waiting: int) -> None:
        super().__init__(
            f"{waiting} requests are waiting, which is the most: try again later, or raise the limit"
        )
        self.waiting = waiting
