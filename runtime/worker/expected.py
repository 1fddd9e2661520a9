"""Upper bounds on the size of a worker's answers, from the call alone; the worker's own claims are not
trusted. The bounds are generous: they only keep a broken or compromised worker from filling memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LEAST = 1 << 20  # bytes that any answer may have
TOKEN = 64  # JSON bytes of a token's id and number, or of an object's names
LISTED = 48  # JSON bytes of a top token in a logprobs report


def tokens_in(value: Any) -> int:
    """Upper bound on the tokens of these texts and lists of ids: a text has at most as many as bytes, plus
    some that a tokenizer adds.
    """
    if isinstance(value, str):
        return 4 * len(value) + 8
    if isinstance(value, np.ndarray):
        return value.size + 8
    if isinstance(value, Sequence):
        nested = len(value) > 0 and isinstance(value[0], (Sequence, np.ndarray))
        return (sum(map(tokens_in, value)) if nested else len(value)) + 8
    return 0


def most_bytes(method: str, args: Sequence[Any], how: Mapping[str, Any], vocabulary: int, width: int) -> int:
    """Upper bound on the bytes of a method's answer. vocabulary: the model's; width: of a hidden row."""
    given = [*args, *how.values()]
    tokens = sum(map(tokens_in, given))
    if method == "logits":
        return LEAST + 4 * vocabulary * tokens
    if method in ("embed", "embed_tokens"):
        return LEAST + (4 * width + 4 * TOKEN) * tokens
    if method == "prompt_logprobs":
        top = how.get("top", args[1] if len(args) > 1 else 0)
        return LEAST + (4 * TOKEN + LISTED * int(top)) * tokens
    if method in ("score", "score_many"):
        # Each continuation may report its whole prompt again.
        asked = how.get("asked", args[0] if args else ()) if method == "score_many" else [given]
        return LEAST + sum(2 * TOKEN * sum(map(tokens_in, one)) * (1 + _longest(one)) for one in asked)
    if method == "rerank":
        return LEAST + 4 * TOKEN * _longest(given)
    if method == "beam_search":
        return LEAST + 4 * TOKEN * _product(given)
    return LEAST


def _longest(given: Sequence[Any]) -> int:
    """Length of the longest list among the arguments."""
    return max((len(v) for v in given if isinstance(v, Sequence) and not isinstance(v, str)), default=1)


def _product(given: Sequence[Any]) -> int:
    """Width times the number of tokens, where the arguments are numbers of tokens."""
    found = 1
    for value in given:
        found *= max(1, value) if isinstance(value, int) else 1
    return found
