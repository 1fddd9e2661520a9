"""Streams: the pieces join to the whole text, no character is split, stop strings end the text in the right
place.
"""

from __future__ import annotations

import pytest
import toy_vocab
from hypothesis import given
from hypothesis import strategies as st

from satchel.errors import RequestError
from satchel.formats.tokenizer import StopStrings, build_tokenizer
from satchel.formats.tokenizer.stream import Detokenizer

TOKENIZER = build_tokenizer(toy_vocab.byte_level())
PIECES = build_tokenizer(toy_vocab.sentencepiece())


@given(st.binary(max_size=40))
def test_any_bytes_one_by_one(data: bytes) -> None:
    stream = Detokenizer(lambda i: bytes([i]), strip=False)
    pieces = [stream.feed(byte) for byte in data]
    assert "".join(pieces) + stream.flush() == data.decode("utf-8", "replace")


@given(st.text(max_size=20))
def test_no_piece_splits_a_character(text: str) -> None:
    stream = Detokenizer(lambda i: bytes([i]), strip=False)
    pieces = [stream.feed(byte) for byte in text.encode()]
    assert "".join(pieces) == text
    assert stream.flush() == ""
    assert [piece for piece in pieces if piece] == list(text)


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=30), st.booleans())
def test_stream_equals_decode(ids: list[int], special: bool) -> None:
    stream = TOKENIZER.stream(special=special)
    assert "".join(map(stream.feed, ids)) + stream.flush() == TOKENIZER.decode(ids, special=special)


@given(st.lists(st.integers(0, PIECES.vocab_size - 1), max_size=30))
def test_sentencepiece_stream_equals_decode(ids: list[int]) -> None:
    stream = PIECES.stream()
    assert "".join(map(stream.feed, ids)) + stream.flush() == PIECES.decode(ids)


def test_unfinished_character_waits_and_is_flushed() -> None:
    stream = TOKENIZER.stream()
    first, second, third = TOKENIZER.encode("€")
    assert [stream.feed(first), stream.feed(second), stream.feed(third)] == ["", "", "€"]
    assert stream.feed([first, second]) == ""
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""
    assert stream.feed([second]) == "\ufffd"


@pytest.mark.parametrize("token", [-1, 10**9, 1 << 64])
def test_ids_outside_the_vocabulary(token: int) -> None:
    with pytest.raises(RequestError, match="token id"):
        TOKENIZER.decode([token])


@pytest.mark.parametrize(
    ("stops", "text", "shown", "found"),
    [
        ([], "abc", "abc", None),
        ([""], "abc", "abc", None),
        (["x"], "abc", "abc", None),
        (["b"], "abc", "a", "b"),
        (["bc"], "abbcd", "ab", "bc"),
        (["abc", "b"], "abc", "a", "b"),
        (["b", "ab"], "xab", "x", "ab"),
        (["\n\n"], "a\n b\n\nc", "a\n b", "\n\n"),
        (["User:"], "hi\nUse", "hi\nUse", None),
        (["aab"], "aaab", "a", "aab"),
    ],
)
def test_stop_strings(stops: list[str], text: str, shown: str, found: str | None) -> None:
    whole, single = StopStrings(stops), StopStrings(stops)
    assert whole.feed(text) + whole.flush() == shown
    assert "".join(map(single.feed, text)) + single.flush() == shown
    assert whole.found == single.found == found


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.text("abc", max_size=5), max_size=8),
)
def test_stop_strings_do_not_depend_on_the_pieces(stops: list[str], pieces: list[str]) -> None:
    whole, parts = StopStrings(stops), StopStrings(stops)
    expected = whole.feed("".join(pieces)) + whole.flush()
    assert "".join(map(parts.feed, pieces)) + parts.flush() == expected
    assert parts.found == whole.found
    assert not [stop for stop in stops if stop in expected]
