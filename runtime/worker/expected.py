"""How long an answer of a worker process may be, by what was asked: the program takes no other word for it. A
bound is generous, for it only keeps a worker that is broken, or no longer ours, from filling memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LEAST = 1 << 20  # bytes that any answer may have
TOKEN = 64  # bytes of a token's id and number, or of an object's names, as JSON
LISTED = 48  # bytes of one of the likeliest tokens beside it


def tokens_in(value: Any) -> int:
    """At most how many tokens these texts and lists of ids have: a text has no more than bytes, and some that
    a tokenizer adds.
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
    """Bytes of a method's answer at most. vocabulary: of the model; width: of a hidden row."""
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
        # Each continuation may tell of its whole prompt again.
        asked = how.get("asked", args[0] if args else ()) if method == "score_many" else [given]
        return LEAST + sum(2 * TOKEN * sum(map(tokens_in, one)) * (1 + _longest(one)) for one in asked)
    if method == "rerank":
        return LEAST + 4 * TOKEN * _longest(given)
    if method == "beam_search":
        return LEAST + 4 * TOKEN * _product(given)
    return LEAST


def _longest(given: Sequence[Any]) -> int:
    """Items of the longest list among the arguments."""
    return max((len(v) for v in given if isinstance(v, Sequence) and not isinstance(v, str)), default=1)


def _product(given: Sequence[Any]) -> int:
    """Width times tokens, which are the numbers among the arguments."""
    found = 1
    for value in given:
        found *= max(1, value) if isinstance(value, int) else 1
    return found
