"""Any text: the tokens' bytes are the text's, time is linear, and user text gives no special token."""

from __future__ import annotations

import time
import unicodedata
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import toy_vocab
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import until

from satchel.formats.gguf import open_gguf
from satchel.formats.tokenizer import Kind, Tokenizer, build_tokenizer

SHARED = Path(__file__).parents[4] / "shared"
FILES = [
    *sorted((SHARED / "vocabs").glob("*.gguf")),
    *sorted((Path(__file__).parents[3] / "models").glob("*.gguf")),
]
NAMES = [*(kind for kind in toy_vocab.KINDS if kind not in ("bert", "t5")), *(path.stem for path in FILES)]
UNICODE = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)
# fmt: off
PARTS = st.sampled_from([
    " ", "  ", "\t", "\n", "\r\n", "\n\n\n", "\u00a0", "\u2028", "\u3000", "\x00", "\x1b", "\x7f", "\u0085",
    "\ufeff", "a", "Z", "é", "e\u0301", "\u0301\u0308", "\u0915\u094d\u0937", "漢字", "한글", "ไทย",
    "\u1112\u1161\u11ab", "مرحبا", "👩\u200d👧", "🏳\ufe0f\u200d🌈", "\U0010ffff", "\ue000", "\U000f1234",
    "0", "12345678901", "٣٤", "Ⅷ", "½", "'s", "'LL", "'ſ", "<", "|", ">", "<|im_start|>", "<s>", "</s>",
    "<|endoftext|>", "<0x41>", "▁", "Ġ", "[INST]", "<｜User｜>", "<think>", "a" * 70, " " * 70, "\n" * 40,
    "-" * 50, "9" * 50,
])
# fmt: on
MIXED = st.lists(PARTS, max_size=25).map("".join)


@cache
def tokenizer_of(name: str) -> Tokenizer:
    if name in toy_vocab.KINDS:
        return build_tokenizer(toy_vocab.KINDS[name]())
    with open_gguf(next(path for path in FILES if path.stem == name)) as gguf:
        return build_tokenizer(gguf.metadata, source=name)


@pytest.mark.parametrize("name", NAMES)
@given(st.one_of(UNICODE, MIXED))
@settings(max_examples=40, deadline=None)
def test_any_text_comes_back_and_makes_no_special_token(name: str, text: str) -> None:
    tokenizer = tokenizer_of(name)
    ids = tokenizer.encode(text, bos=False)
    own = tokenizer.vocab.ids_of(Kind.CONTROL, Kind.UNKNOWN)
    assert set(ids).isdisjoint({*own}) or tokenizer.kind == "bert"
    if tokenizer.kind == "bert":
        return
    if tokenizer.kind in ("llama", "gemma4"):
        text = text.replace("▁", " ")  # these vocabularies write a space so
    said = b"".join(map(tokenizer.token_bytes, ids))
    assert said == text.encode() or (tokenizer.kind == "llama" and said == b" " + text.encode())
    assert tokenizer.decode(ids) == text
    stream = tokenizer.stream()
    assert "".join([*(stream.feed(i) for i in ids), stream.flush()]) == text


@pytest.mark.parametrize("path", [p for p in FILES if "bert" in p.stem], ids=lambda path: path.stem)
@given(st.one_of(UNICODE, MIXED))
@settings(max_examples=40, deadline=None)
def test_wordpiece_reads_any_text(path: Path, text: str) -> None:
    """Text without a piece becomes the unknown token; no other special token appears."""
    tokenizer = tokenizer_of(path.stem)
    ids = tokenizer.encode(text, bos=False)
    own = {*tokenizer.vocab.ids_of(Kind.CONTROL)} - {tokenizer.unk}
    assert own.isdisjoint(ids)
    seen = any(
        not c.isspace() and unicodedata.category(c) not in ("Cc", "Cf", "Cn", "Co", "Mn") for c in text
    )
    assert bool(ids) or not seen
    assert tokenizer.encode(tokenizer.decode(ids), bos=False) is not None


@pytest.mark.parametrize("name", [path.stem for path in FILES])
@pytest.mark.parametrize("unit", [" ", "\n", "a", "1", "漢", "\u0301", "!?", "\U0001f642"])
def test_long_runs_take_time_in_proportion(name: str, unit: str) -> None:
    """Eight times the text may take somewhat more than eight times as long; quadratic code takes 64 times,
    however often it is measured.
    """
    tokenizer = tokenizer_of(name)
    tokenizer.encode(unit * 10)

    def seconds(count: int) -> float:
        text = unit * (count // len(unit)) + "x"
        begun = time.thread_time()
        tokenizer.encode(text, bos=False)
        return time.thread_time() - begun

    until(lambda: seconds(16_000) < max(32 * seconds(2_000), 0.2), "the time is in proportion")


@pytest.mark.parametrize("name", NAMES)
@given(st.lists(st.sampled_from(["é", "漢", "🙂", "a", " ", "\U0010ffff", "\n"]), min_size=1, max_size=12))
@settings(max_examples=20, deadline=None)
def test_a_stream_never_shows_half_a_character(name: str, parts: list[str]) -> None:
    tokenizer, text = tokenizer_of(name), "".join(parts)
    stream, shown = tokenizer.stream(), [""]
    for i in tokenizer.encode(text, bos=False):
        shown.append(shown[-1] + stream.feed(i))
    shown.append(shown[-1] + stream.flush())
    if tokenizer.kind != "bert":
        assert shown[-1] == text
    assert all(after.startswith(before) for before, after in pairwise(shown))
    assert all("\ufffd" not in one for one in shown)
