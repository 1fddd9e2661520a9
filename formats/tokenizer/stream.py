"""Token ids to text, piece by piece: none ends inside a UTF-8 character or a possible stop string."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable


class Detokenizer:
    """Fed ids in order, returns the text that they complete.

    The bytes of an unfinished character wait for the next id; bytes that can't become a character turn into
    U+FFFD. pieces joined with flush() equal `Tokenizer.decode` of all ids.

    piece: an id's bytes, b"" for what is not shown. strip: drop one space at the very start (SentencePiece
    vocabularies put it before the first word).
    """

    def __init__(self, piece: Callable[[int], bytes], strip: bool) -> None:
        self._piece, self._strip = piece, strip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: int | Iterable[int]) -> str:
        data = self._piece(ids) if isinstance(ids, int) else b"".join(map(self._piece, ids))
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """What still waits, as U+FFFD; the detokenizer is then at the start of a character again."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Ends a text at the first of several strings, and holds back what may be the start of one.

    The string that is complete first counts, the longer one of two that end together; so the result does not
    depend on how the text was cut into pieces. keep: that string is shown too.
    """

    def __init__(self, stops: Iterable[str], keep: bool = False) -> None:
        self._keep = keep
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """The text that is safe to show. After a stop string was `found` nothing follows."""
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
        """The text held back, when no more follows."""
        shown, self._held = self._held, ""
        return shown

    def _count_held(self) -> int:
        for count in range(min(len(self._held), self._longest - 1), 0, -1):
            tail = self._held[-count:]
            if any(stop.startswith(tail) for stop in self._stops):
                return count
        return 0
