"""The text of an answer as it comes, for grammars that are written as if all of it were there.

A grammar is a generator: it yields events, and None where it must wait for more. Invariant: what it finds
depends on the whole answer alone, never on where the pieces were cut.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from satchel.formats.chat.events import CallArguments, CallBegin, CallBroken, CallEnd, Content, Event, Note

T = TypeVar("T")
Steps = Generator[Event | None, None, T]
SPACES = " \t\r\n"


class Malformed(Exception):
    """What began as a call is none. note: why, for the user; "" where no one need know."""

    def __init__(self, note: str = "") -> None:
        super().__init__(note)
        self.note = note


@dataclass(slots=True)
class _Run:
    """Plain text, or a marker that came as a token. shown: it is text where it means nothing."""

    text: str
    mark: bool = False
    shown: bool = True


class AnswerReader:
    """tokens: markers that the vocabulary has as tokens of their own; they count as such, never as text.

    tools: parameters (JSON schema) by name. new_id: an id for each call that brings none.
    """

    def __init__(
        self, tokens: Collection[str], tools: Mapping[str, Mapping[str, Any]], new_id: Callable[[], str]
    ) -> None:
        self.tools, self.ended = tools, False
        self._tokens, self._new_id = frozenset(tokens), new_id
        self._runs: deque[_Run] = deque()
        self._at = 0
        self._raw: list[str] = []
        self._calls, self._open = 0, False

    def push(self, text: str, mark: bool = False, shown: bool = True) -> None:
        """More of the answer. mark: a marker that came as its token; text that looks alike is plain."""
        if not text:
            return
        runs = self._runs
        if mark or not runs or runs[-1].mark:
            runs.append(_Run(text, mark, shown))
            return
        if len(runs) == 1:
            runs[0].text, self._at = runs[0].text[self._at :], 0
        runs[-1].text += text

    def is_token(self, marker: str) -> bool:
        return marker in self._tokens

    # What stands in front

    def more(self) -> Steps[bool]:
        """Waits for plain text. False in front of a marker's token, and at the end."""
        while True:
            if self._runs and not self._runs[0].mark and self._at == len(self._runs[0].text):
                self._runs.popleft()
                self._at = 0
            if self._runs:
                return not self._runs[0].mark
            if self.ended:
                return False
            yield None

    def peek(self) -> str:
        """The next character, after `more`."""
        return self._runs[0].text[self._at]

    def rest(self) -> tuple[str, int]:
        """The plain text in front, after `more`, and where in it the next character is."""
        return self._runs[0].text, self._at

    def take(self, count: int) -> str:
        text = self._runs[0].text[self._at : self._at + count]
        self._at += count
        self._raw.append(text)
        return text

    def back(self, count: int) -> None:
        """Puts back what the last `take` took of plain text."""
        self._at -= count
        self._raw[-1] = self._raw[-1][:-count]

    def skip(self) -> Steps[bool]:
        """Passes over white space; False as `more` gives it."""
        while (yield from self.more()):
            text, at = self.rest()
            end = at
            while end < len(text) and text[end] in SPACES:
                end += 1
            self.take(end - at)
            if end < len(text):
                return True
        return False

    def expect(self, char: str) -> Steps[None]:
        """Takes this character, with white space before it."""
        if not (yield from self.skip()):
            raise Malformed("it is not complete")
        if self.peek() != char:
            raise Malformed(f"{char!r} was expected, {self.peek()!r} came")
        self.take(1)

    def at(self, *markers: str) -> Steps[str | None]:
        """Takes the marker that comes next, after white space; None, and only that space taken, for none."""
        if not (yield from self.skip()):
            if self._runs and self._runs[0].text in markers:
                return self._take_mark()
            return None
        texts = sorted((m for m in markers if m and m not in self._tokens), key=len, reverse=True)
        longest = len(texts[0]) if texts else 0
        while True:
            text, at = self.rest()
            tail = text[at : at + longest]
            if self._whole() or not any(len(m) > len(tail) and m.startswith(tail) for m in texts):
                found = next((m for m in texts if tail.startswith(m)), None)
                return self.take(len(found)) if found else None
            yield None

    def until(
        self, markers: Collection[str], wrap: Callable[[str], Event], most: int = 0
    ) -> Steps[str | None]:
        """Gives out the text before the first of the markers, and takes that one. None: none came.

        most: Malformed where more characters come before it; so many are then taken.
        """
        texts = tuple(sorted(m for m in markers if m not in self._tokens))
        pattern, longest = _pattern(texts)
        left = most or -1
        while True:
            if not (yield from self.more()):
                if not self._runs:
                    return None
                run = self._runs[0]
                mark = self._take_mark()
                if mark in markers:
                    return mark
                if run.shown:
                    yield wrap(mark)
                continue
            text, at = self.rest()
            found = pattern.search(text, at) if pattern else None
            end = len(text) if self._whole() else _held(text, at, longest, texts)
            if found and found.start() <= end:
                end = found.start()
            if end > at:
                given = self.take(min(end - at, left) if most else end - at)
                left -= len(given)
                yield wrap(given)
                if most and left <= 0:
                    raise Malformed(f"a name of over {most - 1} characters came")
            elif found and found.start() == at:
                return self.take(len(found[0]))
            else:
                yield None

    def text_until(self, *markers: str, most: int = 0) -> Steps[tuple[str, str | None]]:
        """The text before the first of the markers, and which it was. Malformed where it is `most` long."""
        taken: list[str] = []
        steps = self.until(markers, Content, most)
        while True:
            try:
                event = next(steps)
            except StopIteration as stop:
                marker: str | None = stop.value
                return "".join(taken), marker
            if isinstance(event, Content):
                taken.append(event.text)
            else:
                yield None

    def _whole(self) -> bool:
        return self.ended or len(self._runs) > 1

    def _take_mark(self) -> str:
        run = self._runs.popleft()
        self._raw.append(run.text)
        return run.text

    # The call at hand

    def start(self, begin: str = "") -> None:
        """A call may start here: from here on its text is kept."""
        self._raw, self._open = [begin], False

    def begin(self, name: str, made: str = "") -> CallBegin:
        if not name:
            raise Malformed("it names no tool")
        self._open = True
        self._calls += 1
        return CallBegin(self._calls - 1, made or self._new_id(), name)

    def arguments(self, text: str) -> CallArguments:
        return CallArguments(self._calls - 1, text)

    def end(self) -> CallEnd:
        self.start()
        return CallEnd(self._calls - 1)

    def broken(self, why: Malformed) -> Steps[None]:
        """What was kept of the call goes out as content."""
        if self._open:
            yield CallBroken(self._calls - 1)
        raw = "".join(self._raw)
        self.start()
        if raw:
            yield Content(raw)
        if why.note:
            yield Note(f"a tool call is malformed and stands in the text: {why.note}")


@lru_cache(maxsize=64)
def _pattern(texts: tuple[str, ...]) -> tuple[re.Pattern[str] | None, int]:
    ordered = sorted(texts, key=len, reverse=True)
    return (re.compile("|".join(map(re.escape, ordered))), len(ordered[0])) if ordered else (None, 0)


def _held(text: str, at: int, longest: int, markers: Collection[str]) -> int:
    """Where the end of the text begins that may be the beginning of a marker."""
    for start in range(max(at, len(text) - longest + 1), len(text)):
        tail = text[start:]
        if any(m.startswith(tail) for m in markers):
            return start
    return len(text)
