"""Text and tokens of the C library are those of the Python tokenizer: patterns, merges, special tokens,
pieces of cut characters.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from pathlib import Path

import embedded
import pytest
from embedded import Driver
from hypothesis import given
from hypothesis import strategies as st
from once import made_once
from tiny_file import write_model

from satchel.formats.gguf import open_gguf
from satchel.formats.tokenizer import build_tokenizer
from satchel.runtime.aot import build as aot

# Patterns of each kind: contractions and runs, words as a whole, several in turn, camel case, marks, one.
PRES = ("qwen2", "llama-bpe", "default", "gpt-4o", "deepseek-v3", "bloom", "gpt-2")
TEXTS = (
    "",
    " ",
    "hello hello  hello\n\n hello",
    "It's we'LL I'd DON'T o'ſ 'tis",
    "x = 12345 + 6.78e-9; // ###\r\n\t\treturn;",
    "naïve café ﬁ ǅ Ⅷ ½ ٣٤ 一二三 안녕하세요 ไทย हिन्दी",
    "a\u00a0b\u2003c\u3000d \u200b\u0301e\u0301",
    "👩‍👩‍👧 🏳️‍🌈 \U000e0041\U0010ffff\x00\x7f\ufffe",
    "<|im_start|>user<tool> <tool><|im_end|> <|im_end",
    "ABCdefGHI iPhoneX camelCase HTTPServer",
    " " * 300 + "x" + "\n" * 40 + "\t \n",
    "ab" * 2000 + "!" * 700,
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with Driver(embedded.driver_program(tmp_path_factory)) as made:
        yield made


@pytest.fixture(scope="module", params=PRES)
def app(
    request: pytest.FixtureRequest, driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A model with this pre-tokenizer. Its plans are compiled once: the tensors are the same."""
    folder = tmp_path_factory.mktemp("words")
    path = write_model(folder / "m.gguf", tokenizer__ggml__pre=request.param)
    with open_gguf(path) as gguf, pytest.MonkeyPatch.context() as patch:
        if not COMPILED:
            COMPILED.append(aot.compile_variants(gguf))
        patch.setattr(aot, "compile_variants", lambda gguf: COMPILED[0])
        aot.build(gguf, folder / "app.gguf")
    driver.open(folder / "app.gguf")
    yield folder / "app.gguf"
    driver.close()


COMPILED: list[object] = []


def random_texts(count: int, seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    letters = string.printable + "hello '\n ſßéñΩжשع日本語한٣²½👍\u0301\u00a0\u2028"
    for _ in range(count):
        yield "".join(
            rng.choice(letters)
            if rng.random() < 0.9
            else chr(rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x110000))))
            for _ in range(rng.randrange(60))
        )


def test_patterns_and_special_tokens(app: Path, driver: Driver) -> None:
    with open_gguf(app) as gguf:
        tokenizer = build_tokenizer(gguf.metadata)
    for text in (*TEXTS, *random_texts(150, 1)):
        assert driver.tokenize(text, 2) == tokenizer.encode(text, bos=False), text
        assert driver.tokenize(text, 3) == tokenizer.encode(text, bos=False, special=True), text
    assert driver.tokenize("hello") == tokenizer.encode("hello")  # with the tokens that the file asks for


@pytest.mark.model
def test_the_bundled_vocabulary(
    bundled_model: Path, driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def make(folder: Path) -> None:
        with open_gguf(bundled_model) as gguf:
            aot.build(gguf, folder / "app.gguf")

    driver.open(made_once(tmp_path_factory, "embed-bundled", make) / "app.gguf")
    with open_gguf(bundled_model) as gguf:
        tokenizer = build_tokenizer(gguf.metadata)
    page = (embedded.ROOT / "docs" / "architecture.md").read_text()
    for text in (*TEXTS, *random_texts(300, 2), page):
        ids = tokenizer.encode(text)
        assert driver.tokenize(text) == ids, text
        assert driver.detokenize(ids, 1) == tokenizer.decode(ids, special=True)

    @given(st.text(max_size=80))
    def any_text(text: str) -> None:
        assert driver.tokenize(text, 1) == tokenizer.encode(text, special=True)

    @given(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    def any_tokens(ids: list[int]) -> None:
        assert driver.detokenize(ids) == tokenizer.decode(ids)
        assert driver.detokenize(ids, 1) == tokenizer.decode(ids, special=True)

    any_text()
    any_tokens()
    driver.close()


def test_pieces_hold_whole_characters(driver: Driver, tmp_path: Path) -> None:
    """A random model samples single bytes: each piece is UTF-8, and all are the text of all tokens."""
    path = write_model(tmp_path / "m.gguf", seed=3)
    with open_gguf(path) as gguf, pytest.MonkeyPatch.context() as patch:
        if not COMPILED:
            COMPILED.append(aot.compile_variants(gguf))
        patch.setattr(aot, "compile_variants", lambda gguf: COMPILED[0])
        aot.build(gguf, tmp_path / "app.gguf")
        tokenizer = build_tokenizer(gguf.metadata)
    driver.open(tmp_path / "app.gguf")
    for seed in range(8):
        ids, text = [], b""
        driver.begin(0, [1], {"seed": seed, "max_tokens": 60, "temperature": 3, "top_k": 0, "flags": 1})
        over = False
        while not over:
            token, piece, over = driver.next(0, 1)
            piece.decode()  # whole characters alone
            ids += token
            text += piece
        assert len(ids) == 60
        assert text.decode() == tokenizer.decode(ids)
        driver.end(0)
    driver.close()
