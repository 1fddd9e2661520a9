"""Tokenizers built from a GGUF file's metadata alone: byte-level BPE, SentencePiece, Unigram and WordPiece.

`build_tokenizer` treats metadata as untrusted: it checks everything that it uses, and raises ModelError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from satchel.errors import ModelError
from satchel.formats.tokenizer.base import TokenEncoder, Tokenizer
from satchel.formats.tokenizer.guard import MarkerGuard
from satchel.formats.tokenizer.limit import TooManyTokens, at_most
from satchel.formats.tokenizer.specials import Adds, Escape, SpecialIds, Splitter, read_specials
from satchel.formats.tokenizer.stream import Detokenizer, StopStrings
from satchel.formats.tokenizer.vocab import Kind, Meta, Vocab, read_vocab

__all__ = [
    "Detokenizer",
    "Escape",
    "Kind",
    "MarkerGuard",
    "SpecialIds",
    "StopStrings",
    "TokenEncoder",
    "Tokenizer",
    "TooManyTokens",
    "Vocab",
    "at_most",
    "build_tokenizer",
]

SUPPORTED = ("gpt2", "llama", "bert", "t5", "gemma4")


def build_tokenizer(metadata: Mapping[str, Any], *, source: str = "") -> Tokenizer:
    """Builds the tokenizer of a file from its metadata. source: names the file in errors and warnings.

    ModelError where the kind is not supported, or where tokens, scores, types or merges are invalid.
    """
    meta = Meta(metadata, source)
    model = meta.text("model")
    if model in ("none", "no_vocab"):
        raise ModelError(
            f"{source}: the file holds no tokenizer (tokenizer.ggml.model {model!r})".lstrip(": ")
        )
    if model not in SUPPORTED:
        found = "nothing" if model is None else f"{model!r:.80}"
        raise meta.fail("model", f"one of {', '.join(SUPPORTED)}", found)
    return _build(meta, model)


def _build(meta: Meta, model: str) -> Tokenizer:
    vocab = read_vocab(meta)
    space_prefix = False
    encoder: TokenEncoder
    if model in ("gpt2", "gemma4"):
        from satchel.formats.tokenizer.bpe import Bpe, pick

        pre = pick(meta, model)
        specials, vocab = read_specials(meta, vocab, model, Adds(bos=pre.add_bos))
        encoder = Bpe(meta, vocab, pre)
    elif model == "bert":
        from satchel.formats.tokenizer.wordpiece import WordPiece

        specials, vocab = read_specials(meta, vocab, model, Adds(bos=True, sep=True))
        encoder, space_prefix = WordPiece(meta, vocab, specials.unk), True
    else:
        from satchel.formats.tokenizer.spm import SentencePiece

        unigram = model == "t5"
        specials, vocab = read_specials(meta, vocab, model, Adds(bos=not unigram, eos=unigram))
        pieces = SentencePiece(meta, vocab, unigram, specials.unk)
        encoder, space_prefix = pieces, pieces.space_prefix
    name = meta.values.get("general.name")
    splitter = Splitter(vocab, meta.text("pre") or "", name if isinstance(name, str) else "")
    return Tokenizer(model, vocab, specials, splitter, encoder, space_prefix)
