"""A text of too many tokens is refused by its byte count, or encoding it is aborted (row A11)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.formats.gguf import open_gguf
from satchel.formats.tokenizer import Tokenizer, TooManyTokens, at_most, build_tokenizer, limit
from satchel.formats.tokenizer.limit import BORDER, pieces
from satchel.formats.tokenizer.pretokenizers import PRETOKENIZERS, PreTokenizer

ROWS = {row: name for name, row in PRETOKENIZERS.items()}
WORDS = st.lists(
    st.sampled_from(["a", " b", " Cd", "\n", " ", "1", "'s", "é", "漢", ".", "-", "\t x"]), max_size=25
)


@pytest.fixture(scope="module")
def tokenizer(bundled_model: Path) -> Tokenizer:
    with open_gguf(bundled_model) as gguf:
        return build_tokenizer(gguf.metadata)


def encoded(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records how many characters each call of the library gets."""
    sizes: list[int] = []
    encode = tokenizer._encoder.encode

    def noted(text: str, start: bool) -> list[int]:
        sizes.append(len(text))
        return encode(text, start)

    monkeypatch.setattr(tokenizer._encoder, "encode", noted)
    return sizes


def test_a11_14_mb_are_refused_before_they_are_tokenized(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = encoded(tokenizer, monkeypatch)
    for text in ("word " * 2_800_000, "a" * 14_000_000, "<|im_end|>" * 1_400_000, "é" * 7_000_000):
        with at_most(4096), pytest.raises(TooManyTokens, match="at least"):
            tokenizer.encode(text, special=True)
        with at_most(4096), pytest.raises(TooManyTokens, match="at least"):
            tokenizer.encode_rendered(tokenizer.escape(text))
    assert sizes == []


def test_a11_what_its_bytes_allow_is_given_up_half_way(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = encoded(tokenizer, monkeypatch)
    text = "a b c d " * 60_000  # 240,000 tokens
    with at_most(len(text) // tokenizer._longest + 1), pytest.raises(TooManyTokens):
        tokenizer.encode(text)
    assert 0 < sum(sizes) < len(text) / 2
    assert max(sizes) < 3 * limit.PIECE


def test_the_bound_by_bytes_is_sound(tokenizer: Tokenizer) -> None:
    """No text has fewer tokens than its byte count implies: a text of the longest token has one."""
    longest = max((tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)), key=len).decode()
    for text in (longest, longest * 10, "\0" * 50, "é漢😀" * 20, " " * 300, "word\n" * 99):
        least = len(text.encode()) / tokenizer._longest
        assert len(tokenizer.encode(text, bos=False)) >= least
        with at_most(len(tokenizer.encode(text))):
            tokenizer.encode(text)


def test_nothing_is_limited_outside(tokenizer: Tokenizer) -> None:
    with at_most(1), pytest.raises(TooManyTokens):
        tokenizer.encode("a b c d e f")
    assert len(tokenizer.encode("a b c d e f")) > 1


def pre_tokenizer(row: PreTokenizer) -> object:
    library = pytest.importorskip("tokenizers")
    made = library.Tokenizer(library.models.BPE())
    steps = [library.pre_tokenizers.Split(library.Regex(p), "isolated") for p in row.patterns]
    made.pre_tokenizer = library.pre_tokenizers.Sequence(steps)
    return made


@pytest.mark.parametrize("row", ROWS, ids=list(ROWS.values()))
@given(parts=WORDS)
def test_no_word_reaches_across_a_cut(row: PreTokenizer, parts: list[str]) -> None:
    """For every pre-tokenizer for which texts are cut, words equal those of the whole text."""
    made = pre_tokenizer(row)
    if not row.ends_words:
        return
    text = "ab" + "".join(parts)
    words = [word for word, _ in made.pre_tokenizer.pre_tokenize_str(text)]
    found: list[str] = []
    at = 0
    for border in [*(match.start() for match in BORDER.finditer(text)), len(text)]:
        found += [word for word, _ in made.pre_tokenizer.pre_tokenize_str(text[at:border])]
        at = border
    assert found == words


def test_most_pre_tokenizers_can_be_cut_for() -> None:
    assert sum(row.ends_words for row in ROWS) > len(ROWS) * 0.8


@pytest.mark.parametrize("row", ROWS, ids=list(ROWS.values()))
def test_the_table_says_which_end_words_at_spaces(row: PreTokenizer) -> None:
    text = "ab cd Ef gH I j"
    begins = {begin for _, (begin, _) in pre_tokenizer(row).pre_tokenizer.pre_tokenize_str(text)}
    assert row.ends_words == all(match.start() in begins for match in BORDER.finditer(text))


@given(st.text(st.sampled_from("ab \n"), max_size=80))
def test_pieces_are_the_text(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limit, "PIECE", 4)
        found = list(pieces(text))
    assert "".join(found) == text
    assert all(re.match(" [ab]", piece) for piece in found[1:])
