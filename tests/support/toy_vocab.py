"""Vocabularies of a few tokens as GGUF metadata, with one builder per kind. Keyword arguments override single
keys.
"""

from __future__ import annotations

from typing import Any

import numpy as np

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def _metadata(model: str, rows: list[tuple[str, float, int]], changes: dict[str, Any]) -> dict[str, Any]:
    """Metadata of (text, score, type) rows; a change of None removes the key."""
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": [text for text, _, _ in rows],
        "tokenizer.ggml.scores": np.array([score for _, score, _ in rows], np.float32),
        "tokenizer.ggml.token_type": np.array([kind for _, _, kind in rows], np.int32),
    }
    metadata |= {key if "." in key else f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def byte_level(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """256 bytes, a few merges, two control tokens and a user-defined one; pre-tokenizer qwen2."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in kept]
    letters = [chr(byte) for byte in kept] + [chr(256 + i) for i in range(len(moved))]
    merges = ["h e", "l l", "he ll", "hell o", "Ġ hello", "Ġ Ġ"]
    words = [merge.replace(" ", "") for merge in merges]
    rows = [(text, 0.0, NORMAL) for text in letters + words]
    rows += [("<|im_start|>", 0.0, CONTROL), ("<|im_end|>", 0.0, CONTROL), ("<tool>", 0.0, USER_DEFINED)]
    defaults = {"pre": "qwen2", "merges": merges, "scores": None, "eos_token_id": 263}
    return _metadata("gpt2", rows, defaults | (changes or {}))


def sentencepiece(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """<unk> <s> </s>, 256 byte tokens from id 3, then pieces with scores; a user-defined token at the end."""
    rows = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    rows += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    pieces = ["▁h", "el", "lo", "▁hel", "▁hello", "▁", "h", "e", "l", "o", "<", "s", ">", "/", "▁▁", "x"]
    rows += [(piece, -float(i), NORMAL) for i, piece in enumerate(pieces)]
    return _metadata("llama", [*rows, ("<tool>", 0.0, USER_DEFINED)], changes or {})


def unigram(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """<pad> </s> <unk>, then pieces with log probabilities. A space is put before a text, and whitespace is
    squeezed.
    """
    rows = [("<pad>", 0.0, CONTROL), ("</s>", 0.0, CONTROL), ("<unk>", 0.0, UNKNOWN)]
    rows += [("▁", -3.0, NORMAL), ("▁hello", -4.0, NORMAL), ("he", -5.0, NORMAL), ("llo", -5.0, NORMAL)]
    rows += [(letter, -8.0, NORMAL) for letter in "helo"]
    defaults = {"add_space_prefix": True, "remove_extra_whitespaces": True}
    return _metadata("t5", rows, defaults | (changes or {}))


def wordpiece(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    rows = [(text, 0.0, CONTROL) for text in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
    rows += [(text, 0.0, NORMAL) for text in ("▁hello", "▁un", "able", "▁,", "▁world", "s", "▁中", "▁cafe")]
    defaults = {"unknown_token_id": 1, "bos_token_id": 2, "seperator_token_id": 3, "padding_token_id": 0}
    return _metadata("bert", rows, defaults | (changes or {}))


def raw_bpe(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """BPE over plain UTF-8 with U+2581 for spaces, as gemma4: <pad> <eos> <bos> <unk>, bytes from id 4."""
    rows = [(text, 0.0, CONTROL) for text in ("<pad>", "<eos>", "<bos>", "<unk>")]
    rows += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    rows += [(text, 0.0, NORMAL) for text in ("▁", "h", "i", "hi", "▁hi", "\n", "\n\n", "é")]
    defaults = {"merges": ["h i", "▁ hi"], "bos_token_id": 2, "eos_token_id": 1, "scores": None}
    return _metadata("gemma4", rows, defaults | (changes or {}))


KINDS = {
    "gpt2": byte_level,
    "llama": sentencepiece,
    "t5": unigram,
    "bert": wordpiece,
    "gemma4": raw_bpe,
}
