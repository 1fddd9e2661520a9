"""Small tokenizers of encoders as tokenizer.json, and questions for rerankers in their words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceNormalizer
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

QUERY = "bad cab"
DOCUMENTS = ("fade a cab", "bee", "dad fed a bad bee", "", "cab bad")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ("bad", "cab", "bee", "fed")


def wordpiece(count: int) -> tuple[Tokenizer, dict[str, Any]]:
    """BERT's vocabulary: [PAD] to [MASK], letters, and continuations, up to `count` tokens."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    texts = [*special, *LETTERS, *(f"##{c}" for c in LETTERS), *WORDS]
    vocab = {text: i for i, text in enumerate([*texts, *(f"[unused{i}]" for i in range(count - len(texts)))])}
    made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.add_special_tokens(list(special))
    roles = {"cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "unk": "[UNK]", "mask": "[MASK]"}
    return made, {f"{role}_token": text for role, text in roles.items()}


@cache
def charsmap() -> bytes:
    """SentencePiece's normalization table of NFKC and whitespace: field 2 within field 3 of ModelProto."""
    raw = SentencePieceNormalizer(rule_name="nmt_nfkc").serialized_model_proto()
    for field in (3, 2):
        raw = dict(_fields(raw))[field]
    return raw


def _fields(raw: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(raw):
        tag, at = raw[at], at + 1
        value = shift = 0
        while True:
            byte, at = raw[at], at + 1
            value, shift = value | (byte & 127) << shift, shift + 7
            if byte < 128:
                break
        size = value if tag & 7 == 2 else 0
        yield tag >> 3, raw[at : at + size]
        at += size


def unigram(count: int) -> tuple[Tokenizer, dict[str, Any]]:
    """XLM-RoBERTa's vocabulary: <s>, <pad>, </s>, <unk>, then pieces with scores. A pair has two </s> between
    its texts.
    """
    special = ("<s>", "<pad>", "</s>", "<unk>")
    pieces = ["\u2581", *LETTERS, *(f"\u2581{c}" for c in LETTERS), *(f"\u2581{w}" for w in WORDS)]
    vocab = [(text, 0.0) for text in special] + [(p, -1.0 - 0.07 * i) for i, p in enumerate(pieces)]
    vocab += [(f"spare{i}", -50.0) for i in range(count - len(vocab))]
    made = Tokenizer(models.Unigram(vocab, unk_id=3, byte_fallback=False))
    made.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(charsmap()), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    made.add_special_tokens(list(special))
    roles = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>"}
    return made, {f"{role}_token": text for role, text in roles.items()}


def write(folder: Path, made: tuple[Tokenizer, Mapping[str, Any]]) -> None:
    """Writes the tokenizer's files into a checkpoint folder."""
    tokenizer, settings = made
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
