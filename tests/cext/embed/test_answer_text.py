"""The text of answers in C: stop strings and thinking are those of StopStrings, ChatParser and TokenFeed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import embedded
import numpy as np
import pytest
import toy_vocab
from embedded import DriverError, WordsDriver
from hypothesis import given, settings
from hypothesis import strategies as st

from satchel.formats.chat import ChatParser, Collected, Style, TokenFeed, marker_ids
from satchel.formats.gguf import write_gguf
from satchel.formats.tokenizer import StopStrings, Tokenizer

TEXT, THINKING = 1, 2
OPENINGS = ("", "reasoning", "content")  # of ChatParser; their places are the library's numbers
# Text, tokens, control tokens that are not shown, bytes, and a mixture of both.
MARKERS = [
    ("<think>", "</think>"),
    ("<tool>", "</think>"),
    ("<think>", "<tool>"),
    ("<tool>", "<tool>"),
    ("<|im_start|>", "<|im_end|>"),
    ("<|im_start|>", "</think>"),
    ("aab", "aaab"),
    ("◁é", "é▷"),
]
STOPS = st.lists(
    st.sampled_from(["aa", "aaab", "ab", "b", "é", "</", "<tool>", "ink>", " \n", ""]), max_size=3
)
PARTS = (
    "<think>", "</think>", "<thi", "nk>", "</", "<tool>", "<|im_start|>", "<|im_end|>", " ", "\n", "\n\n",
    "a", "aa", "b", "é", "◁é", "é▷", "hello", "漢", "👍", "x ",
)  # fmt: skip
ANSWERS = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WordsDriver]:
    with WordsDriver(embedded.words_program(tmp_path_factory)) as made:
        yield made


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def tokenizer(
    request: pytest.FixtureRequest, driver: WordsDriver, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    """Vocabularies of bytes: most tokens are parts of words or of characters."""
    folder = tmp_path_factory.mktemp("answers")
    metadata = toy_vocab.KINDS[request.param]() | {"general.architecture": "llama"}
    if request.param == "llama":
        metadata["tokenizer.ggml.tokens"] += ["<|im_start|>", "<|im_end|>"]
        for name, value in (("token_type", toy_vocab.CONTROL), ("scores", 0)):
            old = metadata[f"tokenizer.ggml.{name}"]
            metadata[f"tokenizer.ggml.{name}"] = np.append(old, np.full(2, value, old.dtype))
    write_gguf(folder / "words.gguf", metadata, [])
    made = embedded.build_words(folder / "words.gguf", folder / "app.gguf")
    driver.open(folder / "app.gguf")
    return made


Said = tuple[list[list[tuple[int, str]]], int]


def joined(said: Said, kind: int = 0) -> str:
    """All text, or that of a kind."""
    return "".join(text for piece in said[0] for k, text in piece if kind in (0, k))


def stopped(
    tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str], include: bool
) -> tuple[list[str], str | None]:
    """What each token and then the end releases, and the stop string that was found, in Python."""
    stream, guard = tokenizer.stream(), StopStrings(stops, include)
    shown: list[str] = []
    for token in ids:
        shown.append(guard.feed(stream.feed(token)))
        if guard.found is not None:
            return shown, guard.found
    return [*shown, guard.feed(stream.flush()) + guard.flush()], guard.found


def apart(
    tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str], style: Style, opening: str
) -> Collected:
    """The message of an answer, as ChatReply makes it."""
    markers = marker_ids(tokenizer, style)
    feed = TokenFeed(ChatParser(style, opening=opening, tokens=markers.values()), markers)
    stream, guard, found = tokenizer.stream(start=not opening), StopStrings(stops), Collected()
    for token in ids:
        text = stream.feed(token)
        feed.token(token, text)
        found.add_all(feed.show(len(guard.feed(text))))
        if guard.found is not None:
            break
    else:
        text = stream.flush()
        feed.text(text)
        found.add_all(feed.show(len(guard.feed(text) + guard.flush())))
    return found.add_all(feed.finish())


@given(ANSWERS, STOPS, st.booleans())
def check_stops(
    driver: WordsDriver, tokenizer: Tokenizer, text: str, stops: list[str], include: bool
) -> None:
    ids = tokenizer.encode(text, special=True, bos=False)
    found = driver.answer(ids, stops, include=include)
    shown, stop = stopped(tokenizer, ids, stops, include)
    texts = ["".join(text for _, text in piece) for piece in found[0]]
    assert texts[: len(shown)] == shown
    assert not any(texts[len(shown) :])
    assert (stops[found[1]] if found[1] >= 0 else None) == stop


def test_stop_strings(driver: WordsDriver, tokenizer: Tokenizer) -> None:
    check_stops(driver, tokenizer)


def test_bytes_that_are_no_characters(driver: WordsDriver, tokenizer: Tokenizer) -> None:
    rng = random.Random(1)
    for _ in range(100):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(20)]
        for stops in ([], ["\ufffd\ufffd"], ["a", "\ufffd"]):
            shown, _ = stopped(tokenizer, ids, stops, False)
            assert joined(driver.answer(ids, stops)) == "".join(shown)


@pytest.mark.parametrize("markers", MARKERS, ids=" ".join)
@pytest.mark.parametrize("begins", range(3))
def test_thinking(markers: tuple[str, str], begins: int, driver: WordsDriver, tokenizer: Tokenizer) -> None:
    style = Style(open=markers[0], close=markers[1])

    @given(ANSWERS, STOPS)
    @settings(max_examples=max(30, settings().max_examples // 20))
    def check(text: str, stops: list[str]) -> None:
        ids = tokenizer.encode(text, special=True, bos=False)
        found = driver.answer(ids, stops, markers, begins)
        wanted = apart(tokenizer, ids, stops, style, OPENINGS[begins])
        assert (joined(found, THINKING), joined(found, TEXT)) == (wanted.reasoning, wanted.content)
        assert all(a[0] != b[0] for piece in found[0] for a, b in pairwise(piece))  # a piece for each kind

    check()


def test_examples(driver: WordsDriver, tmp_path: Path) -> None:
    write_gguf(tmp_path / "words.gguf", toy_vocab.byte_level() | {"general.architecture": "llama"}, [])
    tokenizer = embedded.build_words(tmp_path / "words.gguf", tmp_path / "app.gguf")
    driver.open(tmp_path / "app.gguf")
    ids = tokenizer.encode("<think>\nlet me see\n</think>\n\nIt is 4. END more", bos=False)
    found = driver.answer(ids, ["STOP", " END"], ("<think>", "</think>"))
    assert (joined(found, THINKING), joined(found, TEXT), found[1]) == ("let me see", "It is 4.", 1)
    held = driver.answer(tokenizer.encode("aabx", bos=False), ["abc"])
    assert [[text for _, text in piece] for piece in held[0]] == [[], ["a"], [], ["abx"], []]


def test_a_long_run_costs_what_it_is_long(driver: WordsDriver, tokenizer: Tokenizer) -> None:
    """A stop string that nearly matches everywhere: each byte is looked at a few times."""
    ids = tokenizer.encode("a" * 20_000, bos=False)
    found = driver.answer(ids, ["a" * 5000 + "b", "a" * 3000 + "c"], ("a" * 4000 + "x", "</think>"))
    assert joined(found) == tokenizer.decode(ids)


def test_options_out_of_range(driver: WordsDriver, tokenizer: Tokenizer) -> None:
    for options, message in (
        ({"markers": ("<think>", "")}, "thinking_close: expected a text"),
        ({"markers": ("<think>", "</think>"), "begins": 3}, "a begin from 0 to 2, got 3"),
    ):
        with pytest.raises(DriverError, match=message):
            driver.answer([1], **options)
