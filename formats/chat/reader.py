"""The input of the tool-call grammars: a streamed answer that they read as if it were complete.

A grammar is a generator: it yields events, and None where it must wait for more text. Invariant: the result
depends on the whole answer only, not on how it is split into pieces.
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
    """The text that began as a call is not a call. note: the reason for the user; "" for none."""

    def __init__(self, note: str = "") -> None:
        super().__init__(note)
        self.note = note


@dataclass(slots=True)
class _AnswerRun:
    """Plain text, or a marker's token."""

    text: str
    mark: bool = False
    shown: bool = True  # a marker that has no meaning here becomes text


class AnswerReader:
    """A buffer of the answer with the primitives of the grammars.

    tokens: markers that are tokens of the vocabulary; they are recognized as tokens only, never in text.
    tools: parameter schemas (JSON schema) by tool name.
    new_id: creates an id for a call without one.
    """

    def __init__(
        self, tokens: Collection[str], tools: Mapping[str, Mapping[str, Any]], new_id: Callable[[], str]
    ) -> None:
        self.tools, self.ended = tools, False
        self._tokens, self._new_id = frozenset(tokens), new_id
        self._runs: deque[_AnswerRun] = deque()
        self._at = 0
        self._raw: list[str] = []
        self._calls, self._open = 0, False

    def push(self, text: str, mark: bool = False, shown: bool = True) -> None:
        """Adds a piece of the answer. mark: it is a marker's token; equal text without the token is plain."""
        if not text:
            return
        runs = self._runs
        if mark or not runs or runs[-1].mark:
            runs.append(_AnswerRun(text, mark, shown))
            return
        if len(runs) == 1:
            runs[0].text, self._at = runs[0].text[self._at :], 0
        runs[-1].text += text

    def is_token(self, marker: str) -> bool:
        return marker in self._tokens

    # Reading

    def more(self) -> Steps[bool]:
        """Waits for plain text. False before a marker's token and at the end."""
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
        """The buffered plain text, after `more`, and the index of the next character."""
        return self._runs[0].text, self._at

    def take(self, count: int) -> str:
        text = self._runs[0].text[self._at : self._at + count]
        self._at += count
        self._raw.append(text)
        return text

    def back(self, count: int) -> None:
        """Puts back `count` characters of the last `take`."""
        self._at -= count
        self._raw[-1] = self._raw[-1][:-count]

    def skip(self) -> Steps[bool]:
        """Skips white space. Returns as `more`."""
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
        """Takes this character after optional white space. Malformed where another one comes."""
        if not (yield from self.skip()):
            raise Malformed("it is not complete")
        if self.peek() != char:
            raise Malformed(f"{char!r} was expected, {self.peek()!r} came")
        self.take(1)

    def at(self, *markers: str) -> Steps[str | None]:
        """Takes one of the markers after optional white space; None, with only the white space taken, if none
        comes.
        """
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
        """Emits the text before the first of the markers, and takes the marker. None where none comes.

        most: Malformed after this many characters without a marker.
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
        """The text before the first of the markers, and that marker. most: as in `until`."""
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

    # The current call

    def start(self, begin: str = "") -> None:
        """Marks the possible start of a call: its text is kept from here on."""
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
        """Retracts the call, and emits its text as content."""
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
    """The index of the longest suffix of the text that may be the beginning of a marker."""
    for start in range(max(at, len(text) - longest + 1), len(text)):
        tail = text[start:]
        if any(m.startswith(tail) for m in markers):
            return start
    return len(text)
