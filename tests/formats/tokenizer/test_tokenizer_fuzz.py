"""Mutated vocabularies: each is refused with a ModelError, or gives valid ids for every text."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest
import toy_vocab

from satchel.errors import ModelError, RequestError
from satchel.formats.tokenizer import build_tokenizer

KEY = "tokenizer.ggml."
TEXTS = [
    "",
    "a",
    "▁",
    "<0x00>",
    "<0xZZ>",
    "\x00",
    "\n",
    " ",
    "▁▁",
    "é",
    "##x",
    "▁##x",
    "<|im_end|>",
    "<s>",
    "</s>",
]
TEXTS += ["<unk>", "a" * 300, "\U0010ffff", "[UNK]", "<none>", "Ġ", "Ġhello"]
FLAGS = [
    "add_bos_token",
    "add_eos_token",
    "add_space_prefix",
    "remove_extra_whitespaces",
    "normalizer.lowercase",
]
IDS = ["bos", "eos", "unknown", "padding", "seperator", "eot", "mask"]


def mutate(metadata: dict[str, Any], rand: random.Random) -> None:
    tokens, types = metadata[f"{KEY}tokens"], metadata[f"{KEY}token_type"]
    match rand.randrange(7):
        case 0:
            tokens[rand.randrange(len(tokens))] = rand.choice(TEXTS) + rand.choice(["", "1", "2"])
        case 1:
            merge = f"{rand.choice(TEXTS)} {rand.choice(TEXTS)}"
            metadata[f"{KEY}merges"] = [merge, *metadata.get(f"{KEY}merges", [])]
        case 2:
            types[rand.randrange(len(types))] = rand.randrange(-2, 9)
        case 3:
            metadata[f"{KEY}{rand.choice(IDS)}_token_id"] = rand.choice([0, 1, 5, -1, 999_999, (1 << 32) - 1])
        case 4:
            metadata[f"{KEY}{rand.choice(FLAGS)}"] = rand.random() < 0.5
        case 5:
            metadata[f"{KEY}model"] = rand.choice(list(toy_vocab.KINDS))
        case 6:
            metadata[f"{KEY}tokens"] = tokens[: rand.randrange(1, len(tokens) + 1)]


@pytest.mark.parametrize("kind", toy_vocab.KINDS)
def test_mutated_vocabularies(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    rand = random.Random(kind)
    built = 0
    for _ in range(400):
        metadata = toy_vocab.KINDS[kind]()
        for _ in range(rand.randrange(1, 6)):
            mutate(metadata, rand)
        try:
            tokenizer = build_tokenizer(metadata)
        except ModelError:
            continue
        built += 1
        text = f"hello <|im_end|> é€ </s>\n\n{rand.choice(TEXTS)}" + rand.choice(TEXTS) * 3
        ids = tokenizer.encode(text, special=rand.random() < 0.5)
        assert all(0 <= i < tokenizer.vocab_size for i in ids)
        assert isinstance(tokenizer.decode(ids, special=True), str)
        assert tokenizer.unescape(tokenizer.escape(text)) == text
        with pytest.raises(RequestError):
            tokenizer.decode([tokenizer.vocab_size])
    assert 50 < built < 400
