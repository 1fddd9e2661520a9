"""What the host does for a request between the forward part of a step and its sampling: masks, edits of
logits, Python processors; and what it notes after it: the surprise that mirostat follows, logarithms of
probability.

A Detail lives as long as its request, whatever slot or batch that is in; the engine thread alone uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from satchel.quant import RequestError, SatchelError
from satchel.runtime.constraint import Constraint
from satchel.runtime.graph import Array
from satchel.runtime.sampling.dry import Breakers, drops
from satchel.runtime.sampling.logprobs import TOP, Logprob

if TYPE_CHECKING:
    from satchel.runtime.structured_output import StructuredOutput
from satchel.runtime.sampling.options import MOST_BIASES, Sampling

Edits = list[tuple[int, float]]
EDITS = 2 * MOST_BIASES  # places for edits of a row: biases, then what DRY takes off
Processor = Callable[[Sequence[int], Array], Array | None]  # tokens so far, logits (V) float32


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token with what was asked about it. surprise: in bits, in the set that it was drawn from. error: what
    the request's own code raised, or why there is no token; the token means nothing then.
    """

    token: int
    logprob: Logprob | None
    surprise: float
    error: SatchelError | None = None


def token_of(item: int | Sampled) -> int:
    return item if isinstance(item, int) else item.token


def drawn(items: Collection[int | Sampled]) -> list[int]:
    """The tokens; raises the error of one that is none."""
    failed = next((i.error for i in items if isinstance(i, Sampled) and i.error is not None), None)
    if failed is not None:
        raise failed
    return [token_of(i) for i in items]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a request may ask for beyond its Sampling. structured_output: the grammar as a value, from which
    the engine's process makes `constraint`. logprobs: -1 none, 0 the token's own, k the k likeliest too.
    banned: tokens that never come. processors: each gets the tokens so far and the logits, which it changes
    in place or gives anew; they come before masks and biases.
    """

    constraint: Constraint | None = None
    logprobs: int = -1
    processors: tuple[Processor, ...] = ()
    banned: frozenset[int] = frozenset()
    breakers: Breakers = field(default_factory=Breakers)
    structured_output: StructuredOutput | None = None

    def __post_init__(self) -> None:
        if not -1 <= self.logprobs <= TOP:
            raise RequestError(f"logprobs is {self.logprobs}: it must lie between -1 (none) and {TOP}")


NO_WISHES = Wishes()


@dataclass(slots=True)
class Detail:
    """The state of one request's wishes. prompt: tokens before the answer; ends: tokens that end it."""

    sampling: Sampling
    wishes: Wishes
    prompt: int
    ends: frozenset[int]
    mu: float = 0.0
    _static: dict[int, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mu = 2 * self.sampling.mirostat_tau
        texts = [w for w in self.sampling.bad_words if isinstance(w, str)]
        if texts:
            raise RequestError(f"bad_words {texts[0]!r} is a text: the engine takes tokens")

    @property
    def finished(self) -> bool:
        return self.wishes.constraint is not None and self.wishes.constraint.finished

    @property
    def fixed(self) -> bool:
        """Whether the host does the same for every token, whatever came before."""
        s, w = self.sampling, self.wishes
        changing = s.mirostat or s.min_tokens or s.dry_multiplier > 0 or any(len(b) > 1 for b in s.bad_words)
        return not (changing or w.constraint is not None or w.processors or w.logprobs >= 0)

    @property
    def reports(self) -> bool:
        """Whether the device tells logarithms of probability; where logits were changed, the host does."""
        return self.wishes.logprobs >= 0 and not self.wishes.processors

    def check(self, vocabulary: int) -> None:
        """RequestError where a token is not in the vocabulary."""
        s = self.sampling
        named = [*(t for t, _ in s.bias_pairs), *(s.allowed or ()), *self.wishes.banned]
        named += [t for word in s.bad_words if not isinstance(word, str) for t in word]
        bad = next((t for t in named if not 0 <= t < vocabulary), None)
        if bad is not None:
            raise RequestError(f"token id {bad} is not in the vocabulary of {vocabulary}")

    def edits(
        self, past: Sequence[int], context: int
    ) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
        """(token, amount) of what is added to logits at once, and in the chain's stage DRY."""
        s = self.sampling
        finite = [(t, a) for t, a in s.bias_pairs if a > -np.inf]
        wanted = s.dry_multiplier > 0 and s.dry_base >= 1 and s.dry_last_n != 0 and not s.mirostat
        return finite, drops(past, s, self.wishes.breakers, context) if wanted else []

    def mask(self, past: Sequence[int], vocabulary: int) -> Array | None:
        """Words (V / 32) uint32 of the tokens that may come, the constraint aside; None: all may."""
        base, blocked = self._base(vocabulary), self._blocked(past)
        if not blocked:
            return base
        words = full(vocabulary) if base is None else base.copy()
        clear(words, blocked)
        return words

    def _base(self, vocabulary: int) -> Array | None:
        """What never changes; made once."""
        s, banned = self.sampling, set(self.wishes.banned)
        banned |= {t for t, a in s.bias_pairs if a == -np.inf}
        banned |= {w[0] for w in s.bad_words if len(w) == 1 and not isinstance(w, str)}
        if s.allowed is None and not banned:
            return None
        if vocabulary not in self._static:
            words = full(vocabulary)
            if s.allowed is not None:
                words[:] = 0
                np.bitwise_or.at(words, np.array(s.allowed) // 32, bits(np.array(s.allowed)))
            clear(words, banned)
            self._static[vocabulary] = words
        return self._static[vocabulary]

    def _blocked(self, past: Sequence[int]) -> set[int]:
        """Tokens that may not come now: ends before their time, and the last of a bad word that is there but
        for it.
        """
        early = len(past) - self.prompt < self.sampling.min_tokens
        found = set(self.ends) if early else set()
        for word in self.sampling.bad_words:
            if len(word) > 1 and not isinstance(word, str) and tuple(past[1 - len(word) :]) == word[:-1]:
                found.add(word[-1])
        return found

    def fill(self, words: Array) -> None:
        """Asks the constraint which tokens may come."""
        if self.wishes.constraint is not None:
            self.wishes.constraint.fill(words)

    def took(self, token: int, surprise: float) -> None:
        """This token was drawn."""
        if self.sampling.mirostat:
            self.mu -= self.sampling.mirostat_eta * (surprise - self.sampling.mirostat_tau)
        if self.wishes.constraint is not None:
            self.wishes.constraint.accept(token)


def detail_of(sampling: Sampling, wishes: Wishes, prompt: int, ends: frozenset[int]) -> Detail | None:
    """The Detail of a request that needs one; None for those that a plain step serves."""
    s = sampling
    plain = not (s.mirostat or s.min_tokens or s.logit_bias or s.bad_words or s.allowed is not None)
    plain = plain and s.dry_multiplier == 0 and wishes.constraint is None and wishes.logprobs < 0
    if plain and not wishes.processors and not wishes.banned:
        return None
    return Detail(sampling, wishes, prompt, ends)


def words_of(vocabulary: int) -> int:
    return -(-vocabulary // 32)


def full(vocabulary: int) -> Array:
    """Words in which every token of the vocabulary is allowed."""
    return np.full(words_of(vocabulary), 0xFFFFFFFF, np.uint32)


def bits(tokens: Array) -> Array:
    return np.left_shift(np.uint32(1), (tokens % 32).astype(np.uint32))


def clear(words: Array, tokens: set[int]) -> None:
    """Forbids these tokens."""
    if tokens:
        listed = np.fromiter(tokens, np.int64)
        np.bitwise_and.at(words, listed // 32, ~bits(listed))
