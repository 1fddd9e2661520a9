"""Real vocabularies: reference ids, and llama.cpp's ids for difficult texts.

expected.json was made by data/tokenizer/make.py.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from satchel.formats.gguf import open_gguf
from satchel.formats.tokenizer import Tokenizer, build_tokenizer

HERE = Path(__file__).parent
DATA = HERE.parents[1] / "data" / "tokenizer"
SHARED = HERE.parents[3] / "shared"
TEXTS = json.loads((DATA / "texts.json").read_text(encoding="utf-8"))
EXPECTED = json.loads((DATA / "expected.json").read_text(encoding="utf-8"))
VOCABS = [name for name in EXPECTED if name.startswith("ggml-vocab-")]
# BERT decomposes Hangul into all of its letters and keeps spacing marks; llama.cpp drops some of both, the
# model's own tokenizer does not.
OURS = {("ggml-vocab-bert-bge", text) for text in TEXTS if text[:1] in ("안", "न")}


@cache
def load(name: str) -> Tokenizer:
    found = [
        path for folder in ("vocabs", "default-model") for path in (SHARED / folder).glob(f"{name}.gguf")
    ]
    if not found:
        pytest.skip(f"{name}.gguf is not in {SHARED}")
    with open_gguf(found[0]) as gguf:
        return build_tokenizer(gguf.metadata, source=name)


@pytest.mark.parametrize("name", VOCABS)
def test_reference_ids(name: str) -> None:
    tokenizer = load(name)
    path = SHARED / "vocabs" / f"{name}.gguf"
    texts = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    wanted = [[int(i) for i in line.split()] for line in Path(f"{path}.out").read_text().split("\n")]
    assert len(texts) == len(wanted) > 40
    for text, ids in zip(texts, wanted, strict=True):
        assert tokenizer.encode(text, bos=False) == ids, repr(text)


@pytest.mark.parametrize("name", EXPECTED)
def test_same_ids_as_llama_cpp(name: str) -> None:
    tokenizer, ids = load(name), EXPECTED[name]
    for text, plain, special, added in zip(TEXTS, ids["plain"], ids["special"], ids["added"], strict=True):
        if (name, text) in OURS:
            continue
        special = special or plain
        assert tokenizer.encode(text, bos=False) == plain, repr(text)
        assert tokenizer.encode(text, special=True, bos=False) == special, repr(text)
        assert tokenizer.encode(text, special=True) == (added or special), repr(text)


@pytest.mark.parametrize("name", [name for name in EXPECTED if "bert" not in name])
def test_round_trip(name: str) -> None:
    tokenizer = load(name)
    for text in TEXTS:
        ids = tokenizer.encode(text, bos=False)
        if tokenizer.kind == "llama":
            # U+2581 is how SentencePiece writes a space, so a text's own becomes one.
            text = text.replace("▁", " ")
        assert tokenizer.decode(ids) == text
        stream = tokenizer.stream()
        pieces = [stream.feed(i) for i in ids] + [stream.flush()]
        assert "".join(pieces) == text
        assert all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize("name", EXPECTED)
def test_rendered_text_without_escapes_is_ordinary_text(name: str) -> None:
    tokenizer = load(name)
    for text in TEXTS:
        assert tokenizer.encode_rendered(text, bos=False) == tokenizer.encode(text, special=True, bos=False)


@pytest.mark.parametrize("name", EXPECTED)
def test_escaped_text_gives_the_ids_of_text_without_control_tokens(name: str) -> None:
    tokenizer = load(name)
    control = {i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) and tokenizer.is_control(i)}
    for text in TEXTS:
        ids = tokenizer.encode_rendered(tokenizer.escape(text), bos=False)
        assert ids == tokenizer.encode(text, bos=False)
        # WordPiece's unknown token is a control token, and the answer to text that has no token.
        assert not control.difference({tokenizer.unk}).intersection(ids), repr(text)


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("ggml-vocab-deepseek-llm", {"<｜end▁of▁sentence｜>"}),
        ("ggml-vocab-gpt-2", {"<|endoftext|>"}),
        ("ggml-vocab-llama-bpe", {"<|end_of_text|>", "<|eot_id|>"}),
        ("ggml-vocab-llama-spm", {"</s>"}),
        ("ggml-vocab-phi-3", {"<|endoftext|>", "<|end|>", "</s>"}),
        ("ggml-vocab-qwen2", {"<|endoftext|>", "<|im_end|>", "</s>"}),
        ("satchel-40m-bf16", {"<|endoftext|>", "<|im_end|>"}),
    ],
)
def test_end_tokens(name: str, ends: set[str]) -> None:
    tokenizer = load(name)
    assert {tokenizer.text(i) for i in tokenizer.eog} == ends
