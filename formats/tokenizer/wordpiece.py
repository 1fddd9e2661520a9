"""WordPiece vocabularies (BERT), by the Rust library of library.py.

GGUF marks the start of a word with U+2581 where the library marks continuations with ##.
"""

from __future__ import annotations

from satchel.formats.tokenizer import library
from satchel.formats.tokenizer.vocab import Kind, Meta, Vocab

SPACE = "▁"
CONTINUES = "##"
LONGEST_WORD = 100  # characters: BERT's limit; a longer word becomes one unknown token


class WordPiece:
    """The TokenEncoder of WordPiece vocabularies."""

    longest: int | None = None  # spaces are dropped, and a long word is one unknown token
    cuts = True

    def __init__(self, meta: Meta, vocab: Vocab, unk: int | None) -> None:
        if unk is None:
            raise meta.fail("unknown_token_id", f"an id under {len(vocab):,}", "nothing")
        self._vocab = vocab
        lowercase = meta.flag("normalizer.lowercase", True)
        table = {rename(vocab, i): i for i in range(len(vocab))}
        model = {
            "type": "WordPiece",
            "unk_token": rename(vocab, unk),
            "continuing_subword_prefix": CONTINUES,
            "max_input_chars_per_word": LONGEST_WORD,
            "vocab": table,
        }
        normalizer = {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": meta.flag("normalizer.strip_accents", lowercase),
            "lowercase": lowercase,
        }
        self._ids = library.load(meta, model, {"type": "BertPreTokenizer"}, normalizer)

    def encode(self, text: str, start: bool) -> list[int]:
        """The ids of ordinary text. start has no effect: every word has a start mark."""
        return self._ids(text)

    def token_bytes(self, token: int) -> bytes:
        text = self._vocab.tokens[token]
        return (text.replace(SPACE, " ") if self._vocab.types[token] == Kind.NORMAL else text).encode()


def rename(vocab: Vocab, token: int) -> str:
    text = vocab.tokens[token]
    if vocab.types[token] != Kind.NORMAL:
        # A name that no word can have, so that ordinary text never becomes a control token.
        return f"\n{text}"
    return text[1:] if text.startswith(SPACE) and len(text) > 1 else CONTINUES + text
