"""Host-side sampling state of one request: what the host does between the forward pass and sampling (token
bitmask, logit edits, Python processors), and what it updates after it (mirostat's mu, the constraint).

A HostSampling lives as long as its request, in whatever slot or batch; only the engine thread uses it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from satchel.errors import RequestError, SatchelError
from satchel.runtime.engine.finite import damaged
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.graph import Array
from satchel.runtime.sampling import NONE
from satchel.runtime.sampling.dry import dry_penalties
from satchel.runtime.sampling.logprobs import Logprob
from satchel.runtime.sampling.options import MOST_BIASES, Sampling

EDITS = 2 * MOST_BIASES  # most logit edits of a row: biases, then DRY penalties


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sampled token, with its report."""

    token: int
    logprob: Logprob | None  # if the request asked for it
    nll_bits: float  # -log2 of its probability among the candidates it was drawn from
    # What the request's own code raised, or why no token could be sampled; `token` is invalid then.
    error: SatchelError | None = None


def undrawn(source: str) -> Sampled:
    """The item of a row whose logits are lost. source: the model's name in the error."""
    return Sampled(NONE, None, 0.0, damaged(source, "logits"))


def token_of(item: int | Sampled) -> int:
    return item if isinstance(item, int) else item.token


def drawn(items: Collection[int | Sampled]) -> list[int]:
    """The sampled tokens; raises the first error among them."""
    failed = next((i.error for i in items if isinstance(i, Sampled) and i.error is not None), None)
    if failed is not None:
        raise failed
    return [token_of(i) for i in items]


@dataclass(slots=True)
class HostSampling:
    """Host-side sampling state of one request."""

    request: GenerateRequest
    mu: float = 0.0  # state of mirostat
    # Constant part of the token bitmask, by vocabulary size.
    _static: dict[int, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mu = 2 * self.sampling.mirostat_tau
        texts = [w for w in self.sampling.bad_words if isinstance(w, str)]
        if texts:
            raise RequestError(f"bad_words {texts[0]!r} is a text: the engine takes tokens")

    @property
    def sampling(self) -> Sampling:
        return self.request.sampling

    @property
    def finished(self) -> bool:
        return self.request.constraint is not None and self.request.constraint.finished

    @property
    def fixed(self) -> bool:
        """Whether bitmask and edits are the same for every token, so drafts can be verified in one step."""
        s, r = self.sampling, self.request
        changing = s.mirostat or s.min_tokens or s.dry_multiplier > 0 or any(len(b) > 1 for b in s.bad_words)
        return not (changing or r.constraint is not None or r.logits_processors or r.logprobs >= 0)

    @property
    def reports(self) -> bool:
        """Whether the device computes the logprobs; after processors, which change logits, the host does."""
        return self.request.logprobs >= 0 and not self.request.logits_processors

    def check(self, vocabulary: int) -> None:
        """Raises RequestError for a token id outside the vocabulary."""
        s = self.sampling
        named = [*(t for t, _ in s.bias_pairs), *(s.allowed or ()), *self.request.banned]
        named += [t for word in s.bad_words if not isinstance(word, str) for t in word]
        bad = next((t for t in named if not 0 <= t < vocabulary), None)
        if bad is not None:
            raise RequestError(f"token id {bad} is not in the vocabulary of {vocabulary}")

    def edits(
        self, past: Sequence[int], context: int
    ) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
        """Logit edits as (token, amount): biases, added first, and those of the chain's stage DRY."""
        s = self.sampling
        finite = [(t, a) for t, a in s.bias_pairs if a > -np.inf]
        wanted = s.dry_multiplier > 0 and s.dry_base >= 1 and s.dry_last_n != 0 and not s.mirostat
        return finite, dry_penalties(past, s, self.request.breakers, context) if wanted else []

    def mask(self, past: Sequence[int], vocabulary: int) -> Array | None:
        """Token bitmask (V / 32) uint32 without the constraint's part; None: every token is allowed."""
        base, blocked = self._base(vocabulary), self._blocked(past)
        if not blocked:
            return base
        bitmask = full_bitmask(vocabulary) if base is None else base.copy()
        forbid(bitmask, blocked)
        return bitmask

    def _base(self, vocabulary: int) -> Array | None:
        """The part of the bitmask that holds for every step, cached: allowed tokens without banned ones."""
        s, banned = self.sampling, set(self.request.banned)
        banned |= {t for t, a in s.bias_pairs if a == -np.inf}
        banned |= {w[0] for w in s.bad_words if len(w) == 1 and not isinstance(w, str)}
        if s.allowed is None and not banned:
            return None
        if vocabulary not in self._static:
            bitmask = full_bitmask(vocabulary)
            if s.allowed is not None:
                bitmask[:] = 0
                np.bitwise_or.at(bitmask, np.array(s.allowed) // 32, bits(np.array(s.allowed)))
            forbid(bitmask, banned)
            self._static[vocabulary] = bitmask
        return self._static[vocabulary]

    def _blocked(self, past: Sequence[int]) -> set[int]:
        """Tokens forbidden at this step: end tokens before min_tokens, and the last token of a bad word whose
        others are the end of `past`.
        """
        early = len(past) - len(self.request.ids) < self.sampling.min_tokens
        found = set(self.request.stop_ids) if early else set()
        for word in self.sampling.bad_words:
            if len(word) > 1 and not isinstance(word, str) and tuple(past[1 - len(word) :]) == word[:-1]:
                found.add(word[-1])
        return found

    def fill(self, bitmask: Array) -> None:
        """Lets the constraint write its token bitmask."""
        if self.request.constraint is not None:
            self.request.constraint.fill(bitmask)

    def took(self, token: int, nll_bits: float) -> None:
        """Updates the state with the sampled token."""
        if self.sampling.mirostat:
            self.mu -= self.sampling.mirostat_eta * (nll_bits - self.sampling.mirostat_tau)
        if self.request.constraint is not None:
            self.request.constraint.accept(token)


def host_sampling_of(request: GenerateRequest) -> HostSampling | None:
    """The state of a request that needs the host to sample; None where the device samples alone."""
    s, r = request.sampling, request
    plain = not (s.mirostat or s.min_tokens or s.logit_bias or s.bad_words or s.allowed is not None)
    plain = plain and s.dry_multiplier == 0 and r.constraint is None and r.logprobs < 0
    return None if plain and not r.logits_processors and not r.banned else HostSampling(r)


def bitmask_size(vocabulary: int) -> int:
    """uint32 words of a token bitmask: bit i % 32 of word i // 32 allows token i."""
    return -(-vocabulary // 32)


def full_bitmask(vocabulary: int) -> Array:
    """Token bitmask (V / 32) that allows every token."""
    return np.full(bitmask_size(vocabulary), 0xFFFFFFFF, np.uint32)


def bits(tokens: Array) -> Array:
    return np.left_shift(np.uint32(1), (tokens % 32).astype(np.uint32))


def forbid(bitmask: Array, tokens: set[int]) -> None:
    """Clears the bits of these tokens."""
    if tokens:
        listed = np.fromiter(tokens, np.int64)
        np.bitwise_and.at(bitmask, listed // 32, ~bits(listed))
