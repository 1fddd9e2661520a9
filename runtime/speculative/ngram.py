"""Prompt lookup: what followed the same n-gram before is likely to follow again.

The index is a hash chain as in LZ77 coders: each pair of tokens leads to its last position, and each position
to the previous one of the same pair. Adding a token and finding the longest match are O(1). (Prompt lookup:
Saxena, 2023; n-gram speculation in one sequence: Yang et al., "Inference with Reference", 2023.)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

PAIR = 2  # tokens of a key: the shortest match
CHAIN = 128  # positions that are searched, the latest first
LONGEST = 32  # longer matches count as 32 tokens
SALTS = 64  # salts whose past is kept
SHIFT = 32


@dataclass(frozen=True, slots=True)
class Match:
    """A match of the sequence's end."""

    ids: tuple[int, ...]  # the tokens that followed it
    length: int  # of the match


class Ngrams:
    """N-gram index of one sequence."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._last: dict[int, int] = {}
        self._before: list[int] = []  # previous position of the same pair; -1: none

    def __len__(self) -> int:
        return len(self.ids)

    def extend(self, tokens: Sequence[int]) -> None:
        ids, last, before = self.ids, self._last, self._before
        left = ids[-1] if ids else -1
        for at, token in enumerate(tokens, len(ids)):
            if at:
                key = left << SHIFT | token
                before.append(last.get(key, -1))
                last[key] = at
            else:
                before.append(-1)
            left = token
        ids.extend(tokens)

    def match(self, most: int) -> Match | None:
        """Up to `most` tokens that followed the longest earlier match of this sequence's end. If the match
        overlaps the end, the sequence is periodic, and the tokens continue the period.
        """
        ids = self.ids
        if most < 1 or len(ids) <= PAIR:
            return None
        place, length = self._longest(ids, self._before[-1])
        if not length:
            return None
        found = ids[place + 1 : place + 1 + most]
        period = len(ids) - 1 - place
        while len(found) < most:
            found.append(found[-period])
        return Match(tuple(found), length)

    def match_other(self, tail: Sequence[int], most: int) -> Match | None:
        """The same for another sequence that ends in `tail`. Nothing follows this sequence's last token."""
        if most < 1 or len(tail) < PAIR:
            return None
        place, length = self._longest(tail, self._last.get(tail[-2] << SHIFT | tail[-1], -1))
        found = self.ids[place + 1 : place + 1 + most] if length else []
        return Match(tuple(found), length) if found else None

    def _longest(self, tail: Sequence[int], place: int) -> tuple[int, int]:
        """(position of the last token, length) of the longest match of the end of `tail` along the chain from
        `place`, the latest of equally long ones; length 0: none.
        """
        ids, best, longest = self.ids, -1, 0
        most = min(LONGEST, len(tail))
        for _ in range(CHAIN):
            if place < 0 or longest == most:
                break
            # Only a match that also has the token before the longest so far can be longer.
            if not longest or (place >= longest and ids[place - longest] == tail[-1 - longest]):
                length, limit = PAIR, min(most, place + 1)
                while length < limit and ids[place - length] == tail[-1 - length]:
                    length += 1
                if length > longest:
                    best, longest = place, length
            place = self._before[place]
        return best, longest


class Past:
    """The last tokens of earlier conversations, separated by salt, so that a client cannot probe another's
    text.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._kept: OrderedDict[str, Ngrams] = OrderedDict()

    def add(self, salt: str, ids: Sequence[int]) -> None:
        """Adds a conversation that ended. On overflow, the older half is dropped."""
        if not self.size:
            return
        kept = self._kept.setdefault(salt, Ngrams())
        self._kept.move_to_end(salt)
        kept.extend(ids[-self.size :])
        if len(kept) > self.size:
            fresh = self._kept[salt] = Ngrams()
            fresh.extend(kept.ids[-(self.size + 1) // 2 :])
        while len(self._kept) > SALTS:
            self._kept.popitem(last=False)

    def match(self, salt: str, tail: Sequence[int], most: int) -> Match | None:
        kept = self._kept.get(salt)
        return kept.match_other(tail, most) if kept is not None else None
