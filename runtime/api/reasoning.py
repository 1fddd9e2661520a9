"""How far an answer is with its thinking, token by token, and a budget for it as a constraint.

Invariant: what is known after `accept` of some tokens and `rollback` of as many is what was known before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from satchel.errors import RequestError
from satchel.formats.chat import Style
from satchel.formats.tokenizer import Tokenizer

ALL = np.uint32(0xFFFFFFFF)
BEFORE, INSIDE, AFTER = "before", "inside", "after"
SLACK = 64  # bytes beside a marker in the tail that is searched for it
TokenBitmask = npt.NDArray[np.uint32]


class Inner(Protocol):
    """A constraint of the text that follows the thinking."""

    def fill(self, bitmask: TokenBitmask) -> None: ...
    def accept(self, token: int) -> None: ...
    def rollback(self, n: int) -> None: ...
    @property
    def finished(self) -> bool: ...


class Thought:
    """phase: before thinking, inside of it or after. count: tokens inside so far.

    piece: a token's bytes, markers shown. Markers are looked for in the text, so that it doesn't matter how
    many tokens a vocabulary makes of them.
    """

    def __init__(self, piece: Callable[[int], bytes], style: Style, opening: str = "") -> None:
        self._piece = piece
        self._open, self._close = style.open.encode(), style.close.encode()
        self._keep = max(len(self._open), len(self._close)) + SLACK
        self.phase = {"reasoning": INSIDE, "content": AFTER}.get(opening, BEFORE)
        self.count, self._tail = 0, b""
        self._past: list[tuple[str, int, bytes]] = []

    def accept(self, token: int) -> None:
        self._past.append((self.phase, self.count, self._tail))
        if self.phase == AFTER:
            return
        text = self._tail + self._piece(token)
        if self.phase == BEFORE:
            text = self._opened(text)
        else:
            self.count += 1
        if self.phase == INSIDE and self._close in text:
            self.phase = AFTER
        self._tail = text[-self._keep :]

    def _opened(self, text: bytes) -> bytes:
        begun = text.lstrip()
        if begun.startswith(self._open):
            self.phase = INSIDE
            return begun[len(self._open) :]
        if begun and not self._open.startswith(begun):
            self.phase = AFTER
        return text

    @property
    def may_open(self) -> bool:
        """Whether the opening marker may come whole: nothing but space was said."""
        return self.phase == BEFORE and not self._tail.strip()

    def rollback(self, n: int) -> None:
        if not 0 <= n <= len(self._past):
            raise RequestError(f"{len(self._past)} tokens were accepted, {n} can't be taken back")
        for _ in range(n):
            self.phase, self.count, self._tail = self._past.pop()


class ReasoningBudget:
    """After `most` tokens of thinking, or at once where it begins for 0, its end is forced.

    end: text for the model to read before the closing marker. inner: a constraint that holds from the end of
    the thinking on, and from the start for an answer without any; what it took of an opening marker that
    ordinary tokens spell is taken back. A Constraint: fill gives the tokens that may come next as bits.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        style: Style,
        most: int | None = None,
        *,
        opening: str = "",
        end: str = "",
        inner: Inner | None = None,
    ) -> None:
        if most is not None and most < 0:
            raise RequestError(f"the reasoning budget is {most} tokens: it must be 0 (none) or more")
        self._thought = Thought(tokenizer.token_bytes, style, opening)
        self._size, self._most, self._inner = tokenizer.vocab_size, most, inner
        self._closing = closing_ids(tokenizer, style, end)
        self._opener = tokenizer.vocab.index.get(style.open)
        self._forced = 0  # how many of the closing ids were forced so far
        self._taken: list[int] = []  # tokens that the inner constraint has
        self._past: list[tuple[int, bool, tuple[int, ...]]] = []  # forced, taken by inner, given back by it
        self._begin()

    @property
    def phase(self) -> str:
        return self._thought.phase

    @property
    def forced(self) -> tuple[int, ...]:
        """What must come next, () where the model is free."""
        return self._closing[self._forced :] if self._forcing else ()

    @property
    def finished(self) -> bool:
        return self._inner is not None and self._inners and self._inner.finished

    @property
    def _inners(self) -> bool:
        """Whether the next token is the inner constraint's."""
        return self._thought.phase != INSIDE and not self.forced

    def _begin(self) -> None:
        """The forcing begins when the budget is spent, and ends with its last token."""
        thought = self._thought
        spent = self._most is not None and thought.phase == INSIDE and thought.count >= self._most
        self._forcing = spent or 0 < self._forced < len(self._closing)

    def fill(self, bitmask: TokenBitmask) -> None:
        """Writes the token bitmask (ceil(V / 32)) of the next token."""
        if self.forced:
            bitmask[:] = 0
            _allow(bitmask, self.forced[0])
        elif self._inner is None or self._thought.phase == INSIDE:
            bitmask[:] = ALL
            if self._size % 32:
                bitmask[-1] = (1 << self._size % 32) - 1
        else:
            self._inner.fill(bitmask)
            if self._thought.may_open and self._opener is not None:
                _allow(bitmask, self._opener)

    def accept(self, token: int) -> None:
        forced, before = self.forced, self._thought.phase
        self._thought.accept(token)
        passed = not forced and before != INSIDE and self._inner is not None
        begun = passed and self._thought.phase == INSIDE
        back = tuple(self._taken) if begun else ()
        self._past.append((self._forced, passed and not begun, back))
        if forced:
            self._forced = self._forced + 1 if token == forced[0] else 0
        if begun:
            self._give_back(len(back))
        elif passed:
            self._take(token)
        self._begin()

    def _take(self, token: int) -> None:
        if self._inner is not None:
            self._inner.accept(token)
            self._taken.append(token)

    def _give_back(self, n: int) -> None:
        if self._inner is not None and n:
            self._inner.rollback(n)
            del self._taken[-n:]

    def rollback(self, n: int) -> None:
        self._thought.rollback(n)
        for _ in range(n):
            self._forced, passed, back = self._past.pop()
            self._give_back(int(passed))
            for token in back:
                self._take(token)
        self._begin()


def closing_ids(tokenizer: Tokenizer, style: Style, end: str = "") -> tuple[int, ...]:
    """The tokens that end the thinking: the text for the model, which holds no marker, then the marker."""
    said = tokenizer.encode(end, bos=False) if end else []
    return (*said, *tokenizer.encode(style.between + style.close + style.tail, special=True, bos=False))


def _allow(bitmask: TokenBitmask, token: int) -> None:
    bitmask[token // 32] |= np.uint32(1 << token % 32)
