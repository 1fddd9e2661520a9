"""What one rendering may cost: steps, processor time, memory, calls, output. Every operation that can grow
pays first.

Invariant: no single operation between two payments takes longer than a few hundredths of a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, ItemsView, Iterable, KeysView, ValuesView
from dataclasses import dataclass
from typing import Any

_LOOK_EVERY = 256  # steps between two looks at the clock
_ELEMENT = 8  # memory units of a list's element; a character is one unit
_DEEP = (list, tuple, dict, set, frozenset, KeysView, ValuesView, ItemsView)


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """Budget of a template. What is marked + grows with the conversation, so that long ones still fit.

    source: characters of a template's text. tokens: its lexical tokens. nesting: brackets open at once in one
    expression. depth: nodes from the root of its syntax tree to a leaf. calls: macros and recursive loops
    inside each other. steps +: loop passes, calls and their like. seconds +: processor time of the rendering
    thread. units +: characters (1 each) and list elements (8 each) ever made. bits: size of an integer.
    ratio: output characters for each character of template and conversation.
    """

    source: int = 1 << 18
    tokens: int = 10_000
    nesting: int = 48
    depth: int = 128
    calls: int = 40
    steps: int = 400_000
    seconds: float = 0.5
    units: int = 1 << 24
    bits: int = 4096
    ratio: int = 100

    steps_per_node: int = 500
    seconds_per_node: float = 1e-4
    units_per_character: int = 200


class LimitReached(Exception):
    """The template used up one of its limits; the text says which one and how large it is."""


class TemplateMeter:
    """The account of one rendering. `nodes` and `characters` measure the conversation that is rendered."""

    __slots__ = (
        "_check",
        "_clock",
        "_deadline",
        "calls",
        "limits",
        "max_steps",
        "max_units",
        "steps",
        "units",
    )

    def __init__(
        self,
        limits: TemplateLimits,
        nodes: int,
        characters: int,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.limits = limits
        self.steps = 0
        self.units = 0
        self.calls = 0
        self.max_steps = limits.steps + limits.steps_per_node * nodes
        self.max_units = limits.units + limits.units_per_character * characters
        self._clock = clock
        # A thread's own processor time: a busy machine must not make a good template fail.
        self._deadline = clock() + limits.seconds + limits.seconds_per_node * nodes
        self._check = _LOOK_EVERY

    def tick(self, steps: int = 1) -> None:
        """Pay for `steps` small operations. LimitReached where steps or time are used up."""
        self.steps += steps
        if self.steps >= self._check:
            self._look()

    def _look(self) -> None:
        if self.steps > self.max_steps:
            raise LimitReached(f"took more than {self.max_steps:,} steps; does a loop never end?")
        if self._clock() > self._deadline:
            raise LimitReached(f"took more than {self.limits.seconds} s; does a loop never end?")
        self._check = self.steps + _LOOK_EVERY

    def grow(self, characters: int = 0, elements: int = 0) -> None:
        """Pay for a string or list before it is made (after, where it can't outgrow its parts by much)."""
        # A width that a template computed can be negative; it must not pay anything back.
        characters, elements = max(characters, 0), max(elements, 0)
        self.units += characters + _ELEMENT * elements
        if self.units > self.max_units:
            raise LimitReached(f"needed more than {self.max_units:,} characters of memory")
        self.tick(1 + (characters >> 8) + (elements >> 4))

    def enter(self) -> None:
        """A macro or recursive loop begins; `leave` must follow."""
        self.calls += 1
        if self.calls > self.limits.calls:
            raise LimitReached(
                f"nested more than {self.limits.calls} calls; does a macro call itself for ever?"
            )

    def leave(self) -> None:
        self.calls -= 1

    def integer(self, bits: int) -> None:
        """Refuse an integer of more than the allowed bits before it is computed."""
        if bits > self.limits.bits:
            raise LimitReached(f"computed an integer of more than {self.limits.bits} bits")

    def made(self, value: Any) -> Any:
        """Pay for a value just made by an operation that is linear in what went in."""
        if isinstance(value, str):
            self.grow(len(value))
        elif isinstance(value, (list, tuple, dict)):
            self.grow(elements=len(value))
        return value

    def weigh(self, value: Any) -> int:
        """Characters (about) that `value` prints as, paying a step for each part of it.

        Shared parts count each time they are met, because comparing, hashing and printing meet them each
        time: a list doubled sixty times in itself is sixty objects and 2**60 steps.
        """
        if isinstance(value, str):
            self.tick(len(value) >> 8)
            return len(value)
        if not isinstance(value, _DEEP):
            return self._leaf(value)
        total, levels = 0, [iter(_parts(value))]
        while levels:
            for part in levels[-1]:
                self.tick()
                total += 4
                if isinstance(part, _DEEP):
                    levels.append(iter(_parts(part)))
                    break
                total += self.weigh(part)
            else:
                levels.pop()
            if len(levels) > self.limits.depth:
                raise LimitReached(f"nested lists deeper than {self.limits.depth}")
        return total

    def _leaf(self, value: Any) -> int:
        if isinstance(value, int):
            self.integer(value.bit_length())
            return value.bit_length() // 3 + 2
        if isinstance(value, range):
            self.tick(len(value) >> 3)
        return 64


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return (part for item in value.items() for part in item)
    parts: Iterable[Any] = value
    return parts
