"""Refused requests whose reason a program can act on: the errors carry their numbers."""

from __future__ import annotations

from satchel.errors import RequestError


class PromptTooLong(RequestError):
    """The prompt does not fit. prompt, room: tokens."""

    def __init__(self, prompt: int, room: int, line: str) -> None:
        super().__init__(line)
        self.prompt, self.room = prompt, room


class Busy(RequestError):
    """A temporary refusal: the resource is in use."""


class QueueFull(RequestError):
    """The queue is full. waiting: its length."""

    def __init__(self, waiting: int) -> None:
        super().__init__(
            f"{waiting} requests are waiting, which is the most: try again later, or raise the limit"
        )
        self.waiting = waiting
