"""Vocabularies of every kind of tokenizer with its options, as GGUF metadata by name."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import toy_sentences
import toy_vocab


def random_pieces(count: int, seed: int) -> list[tuple[str, float]]:
    """Pieces that overlap, with scores of which many are equal."""
    rng = random.Random(seed)
    letters = "abehlotuwx ▁"
    found = {"".join(rng.choice(letters) for _ in range(rng.randrange(1, 6))): 0.0 for _ in range(count)}
    return [(text, -rng.randrange(40) / 3) for text in found]


def with_pieces(metadata: dict[str, Any], pieces: list[tuple[str, float]]) -> dict[str, Any]:
    """The vocabulary with more ordinary pieces."""
    have = set(metadata["tokenizer.ggml.tokens"])
    more = [(text, score) for text, score in pieces if text not in have]
    rows = (
        ("tokens", [t for t, _ in more]),
        ("scores", [s for _, s in more]),
        ("token_type", [1] * len(more)),
    )
    for name, values in rows:
        old = metadata[f"tokenizer.ggml.{name}"]
        made = [*old, *values] if name == "tokens" else np.r_[old, np.array(values, old.dtype)]
        metadata[f"tokenizer.ggml.{name}"] = made
    return metadata


CHARSMAP = {"precompiled_charsmap": "nfkc"}
TOYS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "whole words": ("gpt2", {"pre": "llama-bpe", "bos_token_id": 262}),
    "llama": ("llama", {}),
    "no prefix": ("llama", {"add_space_prefix": False, "add_eos_token": True}),
    "t5": ("t5", {}),
    "nfkc": ("t5", CHARSMAP),
    "nfkc, no squeezing": ("t5", CHARSMAP | {"remove_extra_whitespaces": False}),
    "bert": ("bert", {}),
    "cased": ("bert", {"normalizer.lowercase": False, "normalizer.strip_accents": True}),
    "accents": ("bert", {"normalizer.strip_accents": False}),
    "gemma4": ("gemma4", {}),
    "phi3": ("llama", {"general.name": "phi3"}),
}


def toy(name: str) -> dict[str, Any]:
    kind, changes = TOYS[name]
    found = {k: toy_sentences.charsmap() if v == "nfkc" else v for k, v in changes.items()}
    made = toy_vocab.KINDS[kind](
        {k: np.frombuffer(v, np.uint8) if isinstance(v, bytes) else v for k, v in found.items()}
    )
    if kind in ("llama", "t5"):
        made = with_pieces(made, random_pieces(300, 1))
    return made
