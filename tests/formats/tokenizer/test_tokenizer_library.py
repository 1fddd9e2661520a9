"""The two packages that have the Rust library inside give the same ids, and the program needs only one."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import toy_vocab

from satchel.errors import ModelError
from satchel.formats.gguf import open_gguf
from satchel.formats.tokenizer import Tokenizer, build_tokenizer, library
from satchel.formats.tokenizer.pretokenizers import PRETOKENIZERS
from satchel.formats.tokenizer.vocab import Meta
from satchel.runtime.aot.patterns import _asked

META = Meta({}, "a test")
TEXTS = (
    "It's 12345 ½, ABCdef  \n\n x١٢٣\u3000日本語ー한국어 नमस्ते\r\n\t<|x|> 'LL  ",
    "hello hello <tool>é hell   <|im_end|>",
    "e\u0301 ÉCOLE straße \x00\x07 \ufffd 😀 a\u200db ǅ",
    "\n\n\n\n a\n\n b \r\n \r c\n" + " " * 70 + "x",
)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package tokenizers."""
    monkeypatch.setitem(sys.modules, "tokenizers", None)


def texts() -> list[str]:
    draw = random.Random(23)
    points = [*range(0x20, 0x250), *range(0x300, 0x700), 0x3042, 0x4E00, 0xAC00, 0x1F600, 0x9, 0xA, 0xD]
    return [*TEXTS, *("".join(map(chr, draw.choices(points, k=draw.randint(1, 60)))) for _ in range(60))]


@pytest.mark.parametrize("name", PRETOKENIZERS)
def test_both_cut_words_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers")
    metadata = toy_vocab.byte_level({"pre": name})
    both = [build_tokenizer(metadata)]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tokenizers", None)
        both.append(build_tokenizer(metadata))
    assert [both[0].encode(text) for text in texts()] == [both[1].encode(text) for text in texts()]


@pytest.mark.parametrize("metadata", [toy_vocab.wordpiece(), toy_vocab.raw_bpe()], ids=["bert", "raw"])
def test_other_vocabularies_give_the_same_ids(
    metadata: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    both = [build_tokenizer(metadata)]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tokenizers", None)
        both.append(build_tokenizer(metadata))
    assert [both[0].encode(text) for text in texts()] == [both[1].encode(text) for text in texts()]


def test_the_bundled_vocabulary(bundled_model: Path, alone: None) -> None:
    with open_gguf(bundled_model) as gguf:
        tokenizer: Tokenizer = build_tokenizer(gguf.metadata)
    for text in texts():
        assert tokenizer.decode(tokenizer.encode(text, bos=False), special=True) == text
    assert len(tokenizer.encode("Hello! Who are you?", bos=False)) == 6


def test_a_token_that_llguidance_cannot_hold_is_an_error(alone: None) -> None:
    long = "a" * (library.LONGEST + 1)
    with pytest.raises(
        ModelError, match=r"at most 1,024 bytes, or the package tokenizers installed, got one of 1,025"
    ):
        library.load(META, library.bpe({"a": 0, long: 1}, ()), library.split(["a"], library.BYTE_LEVEL))
    held = library.bpe({"a": 0, "a" * library.LONGEST: 1}, ())
    assert library.load(META, held, library.split(["a"], library.BYTE_LEVEL))("aa") == [0, 0]


@pytest.mark.parametrize("text", [r"\p{L}", r"[^\r\n\p{L}\p{N}]", r"(?i:s)", r"\s"])
def test_classes_of_patterns_are_the_same(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers")
    _asked.cache_clear()
    with_tokenizers = _asked(text)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    _asked.cache_clear()
    assert _asked(text) == with_tokenizers
