"""The budget of one rendering: steps, CPU time, memory, call depth, output. Every operation whose result can
be large pays before it runs.

Invariant: no operation between two payments takes longer than a few hundredths of a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, ItemsView, Iterable, KeysView, ValuesView
from dataclasses import dataclass
from typing import Any

_LOOK_EVERY = 256  # steps between two checks of the clock
_ELEMENT = 8  # memory units per list element; a character is one unit
_DEEP = (list, tuple, dict, set, frozenset, KeysView, ValuesView, ItemsView)


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """The limits of a template. steps, seconds and units grow with the conversation, so that
    long ones fit.
    """

    source: int = 1 << 18  # characters of the template
    tokens: int = 10_000  # lexical tokens of the template
    nesting: int = 48  # open brackets in one expression
    depth: int = 128  # nodes from the root of the syntax tree to a leaf
    calls: int = 40  # nested macros and recursive loops
    steps: int = 400_000  # loop passes, calls and the like
    seconds: float = 0.5  # CPU time of the rendering thread
    units: int = 1 << 24  # memory allocated in all: 1 per character, 8 per list element
    bits: int = 4096  # of an integer
    ratio: int = 100  # output characters per character of template and conversation

    # Growth of the limits with the conversation; a node is a value of its plain data.
    steps_per_node: int = 500
    seconds_per_node: float = 1e-4
    units_per_character: int = 200


class LimitReached(Exception):
    """The template exceeded a limit. The message names the limit."""


class TemplateMeter:
    """Counts what one rendering has used. nodes, characters: the size of the rendered conversation."""

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
        # CPU time of the thread, so that a template does not fail because the machine is busy.
        self._deadline = clock() + limits.seconds + limits.seconds_per_node * nodes
        self._check = _LOOK_EVERY

    def tick(self, steps: int = 1) -> None:
        """Pays for `steps` small operations. LimitReached where steps or time are used up."""
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
        """Pays for a string or list before it is created; afterwards where it cannot be much larger than its
        parts.
        """
        # A template can compute a negative width, which must not increase the budget.
        characters, elements = max(characters, 0), max(elements, 0)
        self.units += characters + _ELEMENT * elements
        if self.units > self.max_units:
            raise LimitReached(f"needed more than {self.max_units:,} characters of memory")
        self.tick(1 + (characters >> 8) + (elements >> 4))

    def enter(self) -> None:
        """Begins a macro or recursive loop. `leave` must follow."""
        self.calls += 1
        if self.calls > self.limits.calls:
            raise LimitReached(
                f"nested more than {self.limits.calls} calls; does a macro call itself for ever?"
            )

    def leave(self) -> None:
        self.calls -= 1

    def integer(self, bits: int) -> None:
        """Refuses an integer that is too large, before it is computed."""
        if bits > self.limits.bits:
            raise LimitReached(f"computed an integer of more than {self.limits.bits} bits")

    def made(self, value: Any) -> Any:
        """Pays for the result of an operation whose time is linear in its input."""
        if isinstance(value, str):
            self.grow(len(value))
        elif isinstance(value, (list, tuple, dict)):
            self.grow(elements=len(value))
        return value

    def weigh(self, value: Any) -> int:
        """The approximate number of characters that `value` prints as. Pays a step for each of its parts.

        A shared part counts each time it occurs, because comparing, hashing and printing visit it each time:
        a list that contains itself doubled sixty times is sixty objects and 2**60 steps.
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
