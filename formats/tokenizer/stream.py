"""Streaming detokenization: no piece of text ends inside a UTF-8 character or inside a possible
stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable


class Detokenizer:
    """Takes ids in order, and returns the text that they complete.

    The bytes of an incomplete character wait for the next id; invalid bytes become U+FFFD. All pieces and the
    result of flush(), joined, equal `Tokenizer.decode` of all ids.

    piece: returns an id's bytes, b"" for a hidden token. strip: drop one space at the very start, which
    SentencePiece vocabularies put before the first word.
    """

    def __init__(self, piece: Callable[[int], bytes], strip: bool) -> None:
        self.piece, self.strip = piece, strip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: int | Iterable[int]) -> str:
        data = self.piece(ids) if isinstance(ids, int) else b"".join(map(self.piece, ids))
        if self.strip and data:
            self.strip = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """The waiting bytes as U+FFFD. The detokenizer then expects the start of a character."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Ends a text at the first of several stop strings, and holds back text that may begin one.

    The stop string that is complete first counts; of two that end at the same place, the longer one. So the
    result does not depend on how the text is split into pieces. keep: include the stop string in the text.
    any: whether there are stop strings.
    """

    def __init__(self, stops: Iterable[str], keep: bool = False) -> None:
        self._keep = keep
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.any = bool(self._stops)
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """The text that is safe to show. After a stop string was `found` nothing follows."""
        if not self.any:
            return text
        if self.found is not None:
            return ""
        self._held += text
        ends = [(at + len(stop), at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if ends:
            end, at, self.found = min(ends)
            at = end if self._keep else at
            shown, self._held = self._held[:at], ""
            return shown
        keep = self._count_held()
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def flush(self) -> str:
        """The text that is held back; called when no more text follows."""
        shown, self._held = self._held, ""
        return shown

    def _count_held(self) -> int:
        for count in range(min(len(self._held), self._longest - 1), 0, -1):
            tail = self._held[-count:]
            if any(stop.startswith(tail) for stop in self._stops):
                return count
        return 0
