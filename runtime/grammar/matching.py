"""Matches whole texts against a grammar, with a matcher over bytes: linear in the text for any grammar.

Invariant: a text is fed in pieces, so no call holds the interpreter lock for long.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from satchel.runtime.grammar.deep import run_deep

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

END = 256
PIECE = 1 << 12  # bytes in one call


class _Bytes:
    """A vocabulary of the 256 bytes and an end token."""

    eos_token_id, bos_token_id = END, None
    special_token_ids = (END,)

    def __init__(self) -> None:
        self.tokens = [bytes([byte]) for byte in range(END)] + [b"\xffend"]

    def __call__(self, data: bytes) -> list[int]:
        return list(data)


@cache
def _tokenizer() -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])


def matcher_of(grammar: str) -> LLMatcher:
    """A matcher over bytes at the start of a grammar in llguidance's format."""
    from llguidance import LLMatcher

    return run_deep(lambda: LLMatcher(_tokenizer(), grammar, log_level=0))


def is_sentence(matcher: LLMatcher, text: str) -> bool:
    """Whether the matcher accepts the whole text. The matcher must be at its start, and cannot be
    used again.
    """
    data = text.encode(errors="replace")
    for at in range(0, len(data), PIECE):
        piece = list(data[at : at + PIECE])
        if matcher.try_consume_tokens(piece) != len(piece):
            return False
    return not matcher.is_error() and bool(matcher.is_accepting())


def fits(grammar: str, text: str) -> bool:
    """Whether the whole text belongs to the language of a grammar in llguidance's format."""
    return is_sentence(matcher_of(grammar), text)
