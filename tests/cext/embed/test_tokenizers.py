"""Every kind of tokenizer in C gives the tokens and texts of formats/tokenizer, under ASan."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import embedded
import pytest
import toy_vocab
from embedded import DriverError, WordsDriver
from hypothesis import given
from hypothesis import strategies as st
from toy_tokenizers import TOYS, toy

from satchel.formats.gguf import write_gguf
from satchel.formats.tokenizer import Tokenizer
from satchel.formats.tokenizer.pretokenizers import PRETOKENIZERS, PreTokenizer
from satchel.runtime.aot.patterns import PatternProgram

SHARED = Path(__file__).parents[4] / "shared"
FILES = sorted((SHARED / "vocabs").glob("*.gguf"))
# The largest vocabularies take seconds to build; the small ones and the toys have every kind.
QUICK = ("ggml-vocab-llama-spm", "ggml-vocab-phi-3", "ggml-vocab-bert-bge")
BARE, SPECIAL, CONTINUES = 2, 1, 4  # flags
# fmt: off
PARTS = (
    " ", "  ", "\t", "\n", "\r\n", "\n\n\n", "\u00a0", "\u2028", "\u3000", "\x00", "\x1b", "\x7f", "\u0085",
    "\ufeff", "a", "Z", "é", "e\u0301", "\u0301\u0308", "\u0915\u094d\u0937", "漢字", "한글", "ไทย",
    "\u1112\u1161\u11ab", "مرحبا", "👩\u200d👧", "🏳\ufe0f\u200d🌈", "\U0010ffff", "\ue000", "\U000f1234",
    "0", "12345678901", "٣٤", "Ⅷ", "½", "'s", "'LL", "'ſ", "<", "|", ">", "<|im_start|>", "<s>", "</s>",
    "<|endoftext|>", "<0x41>", "▁", "▁▁", "Ġ", "[INST]", "<｜User｜>", "<think>", "a" * 70, " " * 70,
    "\n" * 40, "-" * 50, "9" * 50, "hello", "world", " the", "İ", "ǅ", "ﬁ", "Å", "ﷺ", "ｶﾞ", "\u0344", "①",
    "\u302e\u1dfa\u302f", "\u1b44\u302e", "\U0001d165\u302e\U0001d16d", "\u0903\u093e\u302f\u1b44",
    "<unk>", "[MASK]", "[CLS]", "<|user|>", "<|end|>\n ", "<|assistant|>  ", "\ufffd", "x" * 101, "##x", "#",
    "<tool>", "it is", "bad cab", "uuuuuuuu",
)
# fmt: on


def random_texts(count: int, seed: int) -> Iterator[str]:
    """Texts of parts, of any characters, and of words, in turn."""
    rng = random.Random(seed)
    yield from ("", " ", "hello " * 300, "ab" * 1000, "9" * 2000, "é" * 300 + " " * 500)
    for i in range(count):
        if i % 3 == 0:
            yield "".join(rng.choice(PARTS) for _ in range(rng.randrange(25)))
        elif i % 3 == 1:
            planes = (0x300, 0xD800, 0x20000, 0x110000)
            points = (rng.randrange(rng.choice(planes)) for _ in range(rng.randrange(40)))
            yield "".join(chr(c) for c in points if not 0xD800 <= c < 0xE000)
        else:
            words = ("the ", "quick", " brown ", "a", "b", "ing", "\n", "1", "2 ", "é", "'s ", "Hello", "x")
            yield "".join(rng.choice(words) for _ in range(rng.randrange(60)))


def compare(driver: WordsDriver, tokenizer: Tokenizer, text: str) -> None:
    """Tokens with all that is added, without, of special tokens, and of a text that goes on; then the text of
    these tokens.
    """
    cases: tuple[tuple[int, dict[str, Any]], ...] = (
        (0, {}),
        (BARE, {"bos": False}),
        (BARE | SPECIAL, {"bos": False, "special": True}),
        (BARE | CONTINUES, {"bos": False, "start": False}),
    )
    for flags, options in cases:
        ids = tokenizer.encode(text, **options)
        assert driver.tokenize(text, flags) == ids, (text[:300], flags)
        assert driver.detokenize(ids) == tokenizer.decode(ids)
        assert driver.detokenize(ids, 1) == tokenizer.decode(ids, special=True)


def compare_tokens(driver: WordsDriver, tokenizer: Tokenizer, ids: list[int]) -> None:
    """The text of any tokens, whole and token by token."""
    text = tokenizer.decode(ids)
    assert driver.detokenize(ids) == text
    pieces, _ = driver.answer(ids)
    assert len(pieces) == len(ids) + 1
    assert "".join(t for piece in pieces for _, t in piece) == text


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WordsDriver]:
    with WordsDriver(embedded.words_program(tmp_path_factory)) as made:
        yield made


def opened(driver: WordsDriver, folder: Path, metadata: dict[str, Any]) -> Tokenizer:
    """The tokenizer of a file of this vocabulary alone, which the driver then has open."""
    write_gguf(folder / "words.gguf", {"general.architecture": "llama"} | metadata, [])
    tokenizer = embedded.build_words(folder / "words.gguf", folder / "app.gguf")
    driver.open(folder / "app.gguf")
    return tokenizer


@pytest.mark.parametrize("name", TOYS)
def test_every_kind(name: str, driver: WordsDriver, tmp_path: Path) -> None:
    tokenizer = opened(driver, tmp_path, toy(name))
    for text in random_texts(60, 1):
        compare(driver, tokenizer, text)

    @given(st.text(max_size=60))
    def any_text(text: str) -> None:
        compare(driver, tokenizer, text)

    @given(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    def any_tokens(ids: list[int]) -> None:
        compare_tokens(driver, tokenizer, ids)

    any_text()
    any_tokens()


@pytest.mark.parametrize("missing", ["<0x41>", "<0xE2>"])
def test_characters_without_all_their_bytes_are_unknown(
    missing: str, driver: WordsDriver, tmp_path: Path
) -> None:
    for kind in ("llama", "gemma4"):
        metadata = toy_vocab.KINDS[kind]()
        tokens = metadata["tokenizer.ggml.tokens"]
        at = tokens.index(missing)
        tokens[at] = "none"
        metadata["tokenizer.ggml.token_type"][at] = toy_vocab.UNUSED
        tokenizer = opened(driver, tmp_path, metadata)
        for text in ("A", "€", "a€é漢漢b", " A A", "é ▁ x漢", "AA<tool>A"):
            compare(driver, tokenizer, text)


@pytest.mark.parametrize(
    "name",
    [
        path.stem if path.stem in QUICK else pytest.param(path.stem, marks=pytest.mark.nightly)
        for path in FILES
    ],
)
def test_vocabulary_files(name: str, driver: WordsDriver, tmp_path: Path) -> None:
    path = next(path for path in FILES if path.stem == name)
    tokenizer = embedded.build_words(path, tmp_path / "app.gguf")
    assert driver.open(tmp_path / "app.gguf") == tokenizer.vocab_size
    lines = path.with_name(path.name + ".inp").read_text().split("\n__ggml_vocab_test__\n")
    for text in (*lines, *random_texts(60, 2)):
        compare(driver, tokenizer, text)
    rng = random.Random(3)
    for _ in range(30):
        compare_tokens(driver, tokenizer, [rng.randrange(tokenizer.vocab_size) for _ in range(20)])


@pytest.mark.nightly
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_thousands_of_texts(path: Path, driver: WordsDriver, tmp_path: Path) -> None:
    tokenizer = embedded.build_words(path, tmp_path / "app.gguf")
    driver.open(tmp_path / "app.gguf")
    for text in random_texts(5000, 4):
        compare(driver, tokenizer, text)


# Rows whose patterns have anchors, possessive repeats, intersections of classes and groups that repeat.
HARD = ("deepseek-llm", "tiny_aya", "superbpe")
FIRST = {row: name for name, row in reversed(list(PRETOKENIZERS.items()))}


@pytest.mark.parametrize(
    ("name", "row"),
    [
        (name, row) if name in HARD else pytest.param(name, row, marks=pytest.mark.nightly)
        for row, name in FIRST.items()
    ],
)
def test_every_pattern(name: str, row: PreTokenizer, driver: WordsDriver, tmp_path: Path) -> None:
    kind = toy_vocab.raw_bpe if row.raw else toy_vocab.byte_level
    metadata = kind({"pre": name}) | {"tokenizer.ggml.model": "gpt2"}
    tokenizer = opened(driver, tmp_path, metadata)
    for text in random_texts(60, 5):
        compare(driver, tokenizer, text)


@pytest.mark.parametrize("pattern", ["a+?", r"(?:ab)++", "(?>a)", "(a", "a)", r"\p{", r"\Ka"])
def test_other_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(Exception, match=r"pattern .*(not known|not supported)"):
        PatternProgram(lambda text: ((97, 97),)).add(pattern)


def test_bytes_that_are_no_text_are_refused(driver: WordsDriver, tmp_path: Path) -> None:
    opened(driver, tmp_path, toy("llama"))
    for raw in (b"a\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"<tool>\xc0\x80"):
        with pytest.raises(DriverError, match="expected UTF-8, got another byte at"):
            driver.tokenize(raw)
