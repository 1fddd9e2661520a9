"""The Rust library that encodes text, from the JSON text that Hugging Face calls tokenizer.json.

Two packages have that library inside, and encode alike (tests compare them). `tokenizers` releases the
interpreter lock meanwhile, so a server tokenizes beside its engine and many texts in several threads; the
extra `server` has it, because it brings 33 MB along. llguidance is always there, for structured output. It
holds the lock, and refuses tokens of more than LONGEST bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from satchel.formats.tokenizer.vocab import Meta

Encode: TypeAlias = Callable[[str], list[int]]  # the ids of a text, without special tokens
Step: TypeAlias = dict[str, Any]  # a part of the description

LONGEST = 1024  # bytes of a token for llguidance
BYTE_LEVEL: Step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def bpe(index: Mapping[str, int], merges: Iterable[tuple[str, str]], **more: bool | str) -> Step:
    """The model of byte-pair encoding. more: ignore_merges, byte_fallback, continuing_subword_prefix."""
    # The fields without a value must be there: older versions of the library require them.
    absent = dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
    return {"type": "BPE", "fuse_unk": False, "vocab": index, "merges": list(merges), **absent, **more}


def split(patterns: Iterable[str], *then: Step, behavior: str = "Isolated") -> Step:
    """A pre-tokenizer that cuts at the matches of each pattern in turn; then: what follows."""
    return {
        "type": "Sequence",
        "pretokenizers": [
            *(
                {"type": "Split", "pattern": {"Regex": p}, "behavior": behavior, "invert": False}
                for p in patterns
            ),
            *then,
        ],
    }


def load(meta: Meta, model: Step, cut: Step, normalizer: Step | None = None) -> Encode:
    """The function that encodes by this model, after the normalizer and the pre-tokenizer `cut`. ModelError
    for a vocabulary that the library refuses.
    """
    text = json.dumps(
        {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": normalizer,
            "pre_tokenizer": cut,
            "post_processor": None,
            "decoder": BYTE_LEVEL,  # nothing is decoded with it; llguidance requires one
            "model": model,
        }
    )
    try:
        return by_tokenizers(text)
    except ImportError:
        longest = max(len(token.encode()) for token in model["vocab"])
        if longest > LONGEST:
            limit = f"tokens of at most {LONGEST:,} bytes, or the package tokenizers installed"
            raise meta.fail("tokens", limit, f"one of {longest:,}") from None
        return by_llguidance(text)


def remover(pattern: str) -> Callable[[str], str]:
    """The function that removes what matches a pattern, of the package tokenizers. ImportError where it is
    not installed.
    """
    from tokenizers import Regex, normalizers

    remove: Callable[[str], str] = normalizers.Replace(Regex(pattern), "").normalize_str
    return remove


def by_tokenizers(text: str) -> Encode:
    """The function of the package tokenizers. ImportError where it is not installed."""
    from tokenizers import Tokenizer

    encode = Tokenizer.from_str(text).encode_batch_fast

    def ids(text: str) -> list[int]:
        # Only the library's batch calls release the interpreter lock.
        found: list[int] = encode([text], add_special_tokens=False)[0].ids
        return found

    return ids


def by_llguidance(text: str) -> Encode:
    """The function of llguidance. slices: it is not asked for masks."""
    from llguidance import LLTokenizer

    return LLTokenizer(text, eos_token=0, slices=[]).tokenize_str
