"""A tokenizer's vocabulary for llguidance: the exact bytes of each token that can be text.

Control, unknown and unused tokens have no bytes that a grammar could ask for; the mask `plain` also excludes
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np
import numpy.typing as npt

from satchel.errors import RequestError
from satchel.formats.tokenizer import Kind, Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

TokenBitmask = npt.NDArray[np.uint32]
HIDDEN = b"\xff"  # prefix of special tokens for llguidance; no UTF-8 text contains this byte
LONGEST = 64  # longest token in bytes that the fallback search tries
MARKERS = ("<", "["), (">", "]")


class Vocabulary:
    """The LLTokenizer of a tokenizer, and two masks, uint32 [ceil(n / 32)] with token i at bit i % 32 of word
    i // 32: `plain` (tokens of ordinary text) and `ends` (end tokens).

    draws: this process samples with the masks of its grammars. If not, llguidance's slices of the vocabulary
    are left out: masks take longer, but the vocabulary is built in half the time, during which the
    interpreter lock is held (0.37 s for 150,000 tokens with slices).
    """

    def __init__(self, tokenizer: Tokenizer, draws: bool = True) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        if tokenizer.kind == "bert":
            raise RequestError("a WordPiece vocabulary writes no text, so structured output is not possible")
        ends = sorted(tokenizer.eog)
        if not ends:
            raise RequestError("the vocabulary has no end token, so structured output is not possible")
        self.count = tokenizer.vocab_size
        plain = plain_tokens(tokenizer)
        plain[ends] = False
        source: Any = TokenizerWrapper(_Source(tokenizer, plain, ends))
        self.ll: LLTokenizer = LLTokenizer(source, eos_token=ends, slices=None if draws else [])
        self.plain, self.ends = bits(plain), bitmask_of(ends, self.count)


class _Source:
    """The tokenizer interface for llguidance: bytes by id, and the usual tokens of a text."""

    def __init__(self, tokenizer: Tokenizer, plain: npt.NDArray[np.bool_], ends: list[int]) -> None:
        self.eos_token_id, self.bos_token_id = ends[0], tokenizer.bos
        self.special_token_ids: list[int] = np.flatnonzero(~plain).tolist()
        raw = tokenizer.token_bytes
        self.tokens = [raw(i) if kept else HIDDEN + f"{i}".encode() for i, kept in enumerate(plain.tolist())]
        self._ids: dict[bytes, int] = {}
        self._tokenizer = ref(tokenizer)  # llguidance holds this object, invisible to the garbage collector

    def __call__(self, data: bytes) -> list[int]:
        """Tokens of a text as inside a longer one; greedy longest tokens where the tokenizer would alter the
        text.
        """
        tokenizer = self._tokenizer()
        ids = tokenizer.encode(data.decode(), bos=False, start=False) if tokenizer else []
        return ids if b"".join(self.tokens[i] for i in ids) == data else self._longest(data)

    def _longest(self, data: bytes) -> list[int]:
        if not self._ids:
            self._ids = {piece: i for i, piece in enumerate(self.tokens)}
        found: list[int] = []
        at = 0
        while at < len(data):
            sizes = range(min(len(data) - at, LONGEST), 0, -1)
            size = next((n for n in sizes if data[at : at + n] in self._ids), 0)
            if not size:  # a byte without a token: the vocabulary cannot write the rest
                return found
            found.append(self._ids[data[at : at + size]])
            at += size
        return found


def bits(flags: npt.NDArray[np.bool_]) -> TokenBitmask:
    """Packs n flags into uint32 [ceil(n / 32)], the first in the lowest bit."""
    padded = np.zeros(-(-len(flags) // 32) * 32, bool)
    padded[: len(flags)] = flags
    return np.packbits(padded, bitorder="little").view("<u4").astype(np.uint32)


def bitmask_of(tokens: list[int], count: int) -> TokenBitmask:
    flags = np.zeros(count, bool)
    flags[tokens] = True
    return bits(flags)


def plain_tokens(tokenizer: Tokenizer) -> npt.NDArray[np.bool_]:
    """Which tokens are ordinary text: normal and byte tokens, and user-defined tokens that are not markers of
    a template.
    """
    vocab = tokenizer.vocab
    plain = np.isin(vocab.types, (Kind.NORMAL, Kind.BYTE))
    for token in vocab.ids_of(Kind.USER_DEFINED):
        text = vocab.tokens[token]
        plain[token] = not (text[0] in MARKERS[0] and text[-1] in MARKERS[1])
    return plain
