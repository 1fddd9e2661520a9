"""Splits a text at special tokens in one pass, whose cost does not depend on the number of tokens.

Invariant: the pieces equal those of `by_definition`: the longest token first, each from left to right, as
llama.cpp does. Where no two tokens can overlap, that is the leftmost longest match, repeatedly: one pass of a
compiled trie. Where tokens can overlap (one ends as another begins), the pass finds the longest token at
every position, and `by_definition` is applied to each stretch that they cover, with the tokens found in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

SPACES = " \t\n\v\f\r"
WINDOW = 1 << 16  # characters per call of `re`, which holds the GIL
LONGEST = 1000  # characters of a token
DEEPEST = 60  # prefixes of a token that are tokens too: a deeper trie is no regular expression for `re`


@dataclass(frozen=True)
class Special:
    """A token at which text is split before encoding."""

    id: int
    text: str
    parsed_always: bool
    lstrip: bool = False  # the token also takes the white space before it
    rstrip: bool = False  # the token also takes the white space after it


class Cutter:
    """Splits texts at these tokens, which are sorted with the longest first."""

    def __init__(self, specials: Sequence[Special]) -> None:
        self.specials = [special for special in specials if special.text]
        texts = [special.text for special in self.specials]
        self._order = {text: i for i, text in reversed([*enumerate(texts)])}
        self._lengths = {len(text) for text in texts}
        self._longest = max(self._lengths, default=0)
        # White space that one token swallows may be another: what is rare and short goes by the definition.
        strips = any(special.lstrip or special.rstrip for special in self.specials)
        self._apart = not overlap(texts)
        self._pattern = None if strips else _compiled(texts, self._apart)

    def cut(self, text: str) -> list[str | int]:
        """The ids of the tokens found and the non-empty texts between them, in order."""
        if not text or not self.specials:
            return [text] if text else []
        if self._pattern is None:
            return by_definition(text, [s for s in self.specials if s.text in text])
        found: list[str | int] = []
        at = 0
        for start, end, texts in self._stretches(text, self._pattern):
            if at < start:
                found.append(text[at:start])
            whole = self._order.get(text[start:end]) if end - start <= self._longest else None
            if whole is not None:  # it is the longest, and covers the others
                found.append(self.specials[whole].id)
            else:
                found += by_definition(text[start:end], self._within(texts))
            at = end
        if at < len(text):
            found.append(text[at:])
        return found if self._apart else list(_joined(found))

    def _within(self, texts: set[str]) -> list[Special]:
        """The tokens that can occur in a cluster of these: they and the tokens that are their prefixes."""
        orders = {self._order[text] for text in texts}
        orders |= {
            self._order[found[:n]]
            for found in texts
            for n in range(1, len(found))
            if found[:n] in self._order
        }
        return [self.specials[i] for i in sorted(orders)]

    def _stretches(self, text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, int, set[str]]]:
        """(start, end, longest tokens at its positions) of each stretch that tokens cover."""
        if self._apart:
            yield from ((match.start(), match.end(), set()) for match in self._matches(text, pattern))
            return
        begin, end, texts = -1, -1, set[str]()
        for match in self._matches(text, pattern):
            start, token = match.start(), match[0] + (match[match.lastindex] if match.lastindex else "")
            if start < end:
                end = max(end, start + len(token))
                texts.add(token)
                continue
            if begin >= 0:
                yield begin, end, texts
            begin, end, texts = start, start + len(token), {token}
        if begin >= 0:
            yield begin, end, texts

    def _matches(self, text: str, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        """All matches, searched window by window."""
        at = 0
        while at < len(text):
            limit = at + WINDOW
            for match in pattern.finditer(text, at, min(len(text), limit + self._longest)):
                if match.start() >= limit:
                    break
                yield match
                at = match.end()
            at = max(at, limit)


def _joined(pieces: Sequence[str | int]) -> Iterator[str | int]:
    """The pieces with adjacent texts joined: a cluster may begin or end with text."""
    for is_text, run in groupby(pieces, lambda piece: isinstance(piece, str)):
        if is_text:
            yield "".join(map(str, run))
        else:
            yield from run


def by_definition(text: str, specials: Sequence[Special]) -> list[str | int]:
    """The reference definition: for each token in order, splits the remaining texts at all of its
    occurrences.
    """
    fragments: list[str | int] = [text]
    for special in specials:
        if special.text in text:
            fragments = [piece for fragment in fragments for piece in _cut(fragment, special)]
    return fragments


def _cut(fragment: str | int, token: Special) -> Iterator[str | int]:
    if isinstance(fragment, int) or token.text not in fragment:
        yield fragment
        return
    pieces = fragment.split(token.text)
    for i, piece in enumerate(pieces):
        if i:
            yield token.id
            if token.rstrip:
                piece = piece.lstrip(SPACES)
        if token.lstrip and i + 1 < len(pieces):
            piece = piece.rstrip(SPACES)
        if piece:
            yield piece


def overlap(texts: Sequence[str]) -> bool:
    """Whether one text can end as another begins, so that the order of splitting matters. Runs of one
    character (spaces, newlines) do not count among themselves: the leftmost longest match is the same in any
    order.
    """
    if any(len(text) > LONGEST for text in texts):
        return True  # rather than to compare them: it is no vocabulary in use
    uneven = {text[:n] for text in texts if len(set(text)) > 1 for n in range(1, len(text) + 1)}
    runs = {text[0] for text in texts if len(set(text)) == 1}
    for text in texts:
        ends = [text[n:] for n in range(1, len(text))]
        if any(end in uneven for end in ends):
            return True
        if len(set(text)) > 1 and text[-1] in runs:
            return True
    return False


def _compiled(texts: Sequence[str], apart: bool) -> re.Pattern[str] | None:
    """A pattern that matches the longest token at a position; where tokens can overlap (not `apart`), it
    consumes only the first character and captures the rest. None where it would nest too deeply.
    """
    by_first: dict[str, list[str]] = {}
    for text in sorted(set(texts)):
        by_first.setdefault(text[0], []).append(text[1:])
    branches = []
    for first, rests in by_first.items():
        rest = _trie(rests, 0)
        if rest is None:
            return None
        branches.append(re.escape(first) + (f"(?:{rest})" if apart else f"(?=({rest}))"))
    return re.compile("|".join(branches), re.S) if branches else None


def _trie(texts: Sequence[str], depth: int) -> str | None:
    """An alternation of sorted texts as a trie by common prefixes, which prefers the longest match."""
    if depth > DEEPEST:
        return None
    ends = "" in texts
    groups: dict[str, list[str]] = {}
    for text in texts:
        if text:
            groups.setdefault(text[0], []).append(text)
    branches = []
    for group in groups.values():
        common = _common(group)
        rest = _trie([text[len(common) :] for text in group], depth + 1)
        if rest is None:
            return None
        branches.append(re.escape(common) + rest)
    if not branches:
        return ""
    whole = "|".join(branches)
    return f"(?:{whole})?" if ends else f"(?:{whole})" if len(branches) > 1 else whole


def _common(texts: Sequence[str]) -> str:
    """The common prefix of sorted texts."""
    first, last = texts[0], texts[-1]
    n = next(
        (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
    )
    return first[:n]
