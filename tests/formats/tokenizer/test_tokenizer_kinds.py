"""Each kind of vocabulary on a toy of a few tokens: ids worked out by hand, bytes back, added tokens."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import toy_vocab
from tokenizers import Regex, pre_tokenizers

from satchel.errors import ModelError, RequestError
from satchel.formats.tokenizer import build_tokenizer
from satchel.formats.tokenizer.pretokenizers import PRETOKENIZERS


def index_of(metadata: dict[str, Any], *texts: str) -> list[int]:
    return [metadata["tokenizer.ggml.tokens"].index(text) for text in texts]


@pytest.mark.parametrize(
    ("kind", "text", "pieces"),
    [
        ("gpt2", "hello hello", ["hello", "Ġhello"]),
        ("gpt2", "hell   <|im_end|>", ["hell", "ĠĠ", "Ġ", "<", "|", "i", "m", "_", "e", "n", "d", "|", ">"]),
        ("gpt2", "<tool>é", ["<tool>", "Ã", "©"]),
        ("llama", "hello", ["▁hello"]),
        ("llama", "  hello", ["▁▁", "▁hello"]),
        ("llama", "é", ["▁", "<0xC3>", "<0xA9>"]),
        ("llama", "</s>", ["▁", "<", "/", "s", ">"]),
        ("llama", "x<tool>x", ["▁", "x", "<tool>", "▁", "x"]),
        ("t5", "hello  hello", ["▁hello", "▁hello"]),
        ("t5", "hellohello", ["▁hello", "he", "llo"]),
        ("t5", "h€€", ["▁", "h", "<unk>"]),
        ("bert", "Hello, UNABLE worlds", ["▁hello", "▁,", "▁un", "able", "▁world", "s"]),
        ("bert", "café中zebra", ["▁cafe", "▁中", "[UNK]"]),
        ("gemma4", "hi hi", ["hi", "▁hi"]),
        ("gemma4", "\n\nhi\n\n\né€", ["\n\n", "hi", "\n", "\n", "\n", "é", "<0xE2>", "<0x82>", "<0xAC>"]),
    ],
)
def test_ids(kind: str, text: str, pieces: list[str]) -> None:
    metadata = toy_vocab.KINDS[kind]()
    assert build_tokenizer(metadata).encode(text, bos=False) == index_of(metadata, *pieces)


@pytest.mark.parametrize(
    ("kind", "changes", "bos", "around"),
    [
        ("gpt2", {}, None, ([], [])),
        ("gpt2", {"bos_token_id": 262, "add_bos_token": True}, None, (["<|im_start|>"], [])),
        ("gpt2", {"bos_token_id": 262}, True, (["<|im_start|>"], [])),
        ("gpt2", {"bos_token_id": 262, "pre": "llama-bpe"}, None, (["<|im_start|>"], [])),
        ("gpt2", {"bos_token_id": 262, "add_bos_token": True, "add_eos_token": True}, False, ([], [])),
        ("gpt2", {"add_eos_token": True}, None, ([], ["<|im_end|>"])),
        ("llama", {}, None, (["<s>"], [])),
        ("llama", {"add_bos_token": False}, None, ([], [])),
        ("llama", {"add_eos_token": True}, None, (["<s>"], ["</s>"])),
        ("t5", {}, None, ([], ["</s>"])),
        ("bert", {}, None, (["[CLS]"], ["[SEP]"])),
        ("bert", {}, False, ([], [])),
        ("gemma4", {}, None, (["<bos>"], [])),
    ],
)
def test_what_is_added(
    kind: str, changes: dict[str, Any], bos: bool | None, around: tuple[list[str], list[str]]
) -> None:
    metadata = toy_vocab.KINDS[kind](changes)
    tokenizer = build_tokenizer(metadata)
    before, after = (index_of(metadata, *texts) for texts in around)
    plain = tokenizer.encode("hello", bos=False)
    assert tokenizer.encode("hello", bos=bos) == [*before, *plain, *after]


def test_begin_token_that_does_not_exist() -> None:
    tokenizer = build_tokenizer(toy_vocab.byte_level())
    with pytest.raises(RequestError, match="begin token"):
        tokenizer.encode("hello", bos=True)


def test_rendered_text_gets_one_begin_token() -> None:
    tokenizer = build_tokenizer(toy_vocab.sentencepiece())
    assert tokenizer.encode_rendered("hello") == tokenizer.encode_rendered("<s>hello")
    assert tokenizer.encode_rendered("hello")[0] == tokenizer.bos


@pytest.mark.parametrize(
    ("kind", "text"),
    [(kind, text) for kind in ("gpt2", "llama", "gemma4") for text in ("hello", " é\n\n€ x", "")],
)
def test_text_comes_back(kind: str, text: str) -> None:
    tokenizer = build_tokenizer(toy_vocab.KINDS[kind]())
    ids = tokenizer.encode(text, bos=False)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([*ids, *tokenizer.eog]) == text


def test_space_prefix_is_dropped_once() -> None:
    metadata = toy_vocab.sentencepiece()
    tokenizer = build_tokenizer(metadata)
    ids = index_of(metadata, "<s>", "▁hello", "▁hello")
    assert tokenizer.decode(ids) == "hello hello"
    assert tokenizer.decode(ids, special=True) == "<s> hello hello"
    assert tokenizer.stream(start=False).feed(ids) == " hello hello"
    bare = build_tokenizer(toy_vocab.sentencepiece({"add_space_prefix": False}))
    assert bare.encode("h", bos=False) == index_of(metadata, "h")
    assert bare.decode(ids) == " hello hello"


def test_without_all_byte_tokens_strange_text_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    metadata = toy_vocab.sentencepiece()
    metadata["tokenizer.ggml.tokens"][10] = "dropped"
    metadata["tokenizer.ggml.token_type"][10] = toy_vocab.NORMAL
    assert build_tokenizer(metadata).encode("h€", bos=False) == index_of(metadata, "▁h", "<unk>")
    assert "fewer than 256 byte tokens" in caplog.text


@pytest.mark.parametrize("name", PRETOKENIZERS)
def test_every_pretokenizer_keeps_the_text(name: str) -> None:
    text = "It's 12345 ½, ABCdef  \n\n x١٢٣\u3000日本語ー한국어 नमस्ते\r\n\t<|x|> 'LL  "
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRETOKENIZERS[name].patterns]
    pieces = [piece for piece, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]
    assert "".join(pieces) == text
    assert len(pieces) > 1


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("llama-bpe", "12345", ["123", "45"]),
        ("qwen2", "12345", ["1", "2", "3", "4", "5"]),
        ("gpt-2", "12345", ["12345"]),
        ("default", "12345", ["123", "45"]),
        ("afmoe", "12345", ["12", "345"]),
        ("superbpe", "1234567", ["1", "234", "567"]),
        ("tiny_aya", "1234567 12a", ["1", "234", "567", " ", "12", "a"]),
        ("gpt-4o", "iPhone HTTPServer", ["i", "Phone", " HTTPServer"]),
        ("llama-bpe", "iPhone don'T", ["iPhone", " don", "'T"]),
        ("kimi-k2", "漢字abc", ["漢字", "abc"]),
        ("deepseek-llm", "a  \n b", ["a", "  ", "\n", " b"]),
        ("bloom", "a, b", ["a", ",", " b"]),
        ("laguna", "a\n\nb", ["a", "\n\n", "b"]),
    ],
)
def test_pretokenizer_pieces(name: str, text: str, pieces: list[str]) -> None:
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRETOKENIZERS[name].patterns]
    assert [piece for piece, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)] == pieces


@pytest.mark.parametrize(
    ("texts", "ends"),
    [
        (["<|return|>", "<|call|>", "<|end|>"], {"<|return|>", "<|call|>"}),
        (["<|end|>"], {"<|end|>"}),
        (["<end_of_turn>", "<eos>"], {"<end_of_turn>", "<eos>"}),
        (["<|tool_response>", "</s>", "<turn|>"], {"<|tool_response>", "<turn|>"}),
        (["<|file_sep|>", "<|repo_name|>", "<|fim_pad|>"], {"<|file_sep|>", "<|repo_name|>", "<|fim_pad|>"}),
    ],
)
def test_ends_known_by_their_text(texts: list[str], ends: set[str]) -> None:
    metadata = toy_vocab.byte_level({"eos_token_id": None})
    first = metadata["tokenizer.ggml.tokens"].index("<|im_start|>")
    metadata["tokenizer.ggml.tokens"][first : first + 3] = [*texts, "<a>", "<b>"][:3]
    tokenizer = build_tokenizer(metadata)
    assert {tokenizer.text(i) for i in tokenizer.eog} == ends


@pytest.mark.parametrize("name", [None, "no-such-name"])
def test_pretokenizer_unknown_is_a_warning(name: str | None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = build_tokenizer(toy_vocab.byte_level({"pre": name}), source="x.gguf")
    assert tokenizer.decode(tokenizer.encode("hello 123")) == "hello 123"
    assert len(caplog.records) == 1
    assert "x.gguf: tokenizer.ggml.pre" in caplog.text and "'default'" in caplog.text


@pytest.mark.parametrize(
    "model", ["none", "no_vocab", "rwkv", "plamo2", "hybriddna", "whitespace", "test", "", None, 3]
)
def test_kinds_that_are_refused(model: object) -> None:
    named = re.escape(repr(model)) if isinstance(model, str) else "tokenizer"
    with pytest.raises(ModelError, match=named):
        build_tokenizer({"tokenizer.ggml.model": model} if model is not None else {})


def test_a_pretokenizer_that_loses_text_is_refused() -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.pre: .*'whitespace'"):
        build_tokenizer(toy_vocab.byte_level({"pre": "whitespace"}))
