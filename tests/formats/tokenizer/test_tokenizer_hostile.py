"""Hostile metadata and texts, by row: each gives a ModelError that names the key, or a warning."""

from __future__ import annotations

import functools
import logging
from typing import Any

import numpy as np
import pytest
import toy_vocab

from satchel.errors import ModelError, RequestError
from satchel.formats.tokenizer import build_tokenizer
from satchel.formats.tokenizer import vocab as vocab_module

CHARSMAP_STRINGS = b"hello\0"


def charsmap(size: int = 2048, units: dict[int, int] | None = None, strings: bytes = CHARSMAP_STRINGS) -> Any:
    """A normalization table that replaces "a" by "hello", with some of its units changed."""
    trie = np.zeros(512, "<u4")
    letter = 256 ^ ord("a")
    trie[0], trie[letter], trie[letter ^ 3] = 256 << 10, 3 << 10 | 1 << 8 | ord("a"), 1 << 31
    for at, unit in (units or {}).items():
        trie[at] = unit
    return np.frombuffer(size.to_bytes(4, "little") + trie.tobytes() + strings, np.uint8)


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


class Endless(list[str]):
    """States a huge size; nothing of it may be read."""

    def __len__(self) -> int:
        return 10_000_000

    def tolist(self) -> list[str]:
        raise AssertionError("read although it is too long")


ERRORS = [
    ("M08-missing", "gpt2", {"tokens": None}, "tokens"),
    ("M08-empty", "gpt2", {"tokens": []}, "tokens"),
    ("M08-string", "gpt2", {"tokens": "abc"}, "tokens"),
    ("M08-numbers", "gpt2", {"tokens": ints(1, 2)}, "tokens"),
    ("M08-mixed", "gpt2", {"tokens": ["a", 1]}, "tokens"),
    ("M08-bytes", "gpt2", {"tokens": [b"a"]}, "tokens"),
    ("M08-scores-short", "llama", {"scores": np.zeros(5, np.float32)}, "scores"),
    ("M08-scores-int8", "llama", {"scores": np.zeros(999, np.int8)}, "scores"),
    ("M08-scores-nan", "llama", {"scores": np.full(276, np.nan, np.float32)}, "scores"),
    ("M08-scores-inf", "t5", {"scores": np.full(12, np.inf, np.float32)}, "scores"),
    ("M08-scores-missing", "llama", {"scores": None}, "scores"),
    ("M08-types-short", "gpt2", {"token_type": ints(1, 1)}, "token_type"),
    ("M08-types-float", "gpt2", {"token_type": np.ones(999, np.float32)}, "token_type"),
    ("M08-types-string", "gpt2", {"token_type": "normal"}, "token_type"),
    ("M08-huge", "gpt2", {"tokens": Endless()}, "tokens"),
    ("M08-twice", "gpt2", {"tokens": ["a", "b", "a"], "token_type": None}, "tokens"),
    ("M07-type", "gpt2", {"eos_token_id": "2"}, "eos_token_id"),
    ("M07-float", "gpt2", {"bos_token_id": 1.0}, "bos_token_id"),
    ("M07-flag", "gpt2", {"add_bos_token": 1}, "add_bos_token"),
    ("M09-long", "gpt2", {"tokens": ["a" * 70_000], "token_type": None}, "tokens"),
    ("M11-no-space", "gpt2", {"merges": ["ab"]}, "merges"),
    ("M11-empty", "gpt2", {"merges": ["a b", ""]}, "merges"),
    ("M11-no-left", "gpt2", {"merges": [" b"]}, "merges"),
    ("M11-no-right", "gpt2", {"merges": ["a "]}, "merges"),
    ("M11-twice", "gpt2", {"merges": ["h e", "l l", "h e"]}, "merges"),
    ("M11-missing", "gpt2", {"merges": None}, "merges"),
    ("M11-numbers", "gpt2", {"merges": ints(1)}, "merges"),
    ("M11-huge", "gpt2", {"merges": Endless()}, "merges"),
    ("M11-byte-negative", "llama", {3: "<0x-1>"}, "tokens"),
    ("M11-byte-letters", "llama", {3: "<0xGG>"}, "tokens"),
    ("M11-byte-long", "llama", {3: "<0x100>"}, "tokens"),
    ("M11-byte-raw", "gemma4", {4: "<0xGG>"}, "tokens"),
    ("M12-type", "t5", {"precompiled_charsmap": "x"}, "precompiled_charsmap"),
    ("M12-element", "t5", {"precompiled_charsmap": ints(1)}, "precompiled_charsmap"),
    ("M12-no-header", "t5", {"precompiled_charsmap": charsmap()[:3]}, "precompiled_charsmap"),
    ("M12-truncated", "t5", {"precompiled_charsmap": charsmap()[:900]}, "precompiled_charsmap"),
    ("M12-size", "t5", {"precompiled_charsmap": charsmap(0xFFFFFFFF)}, "precompiled_charsmap"),
    ("M12-size-zero", "t5", {"precompiled_charsmap": charsmap(0)}, "precompiled_charsmap"),
    ("M12-size-odd", "t5", {"precompiled_charsmap": charsmap(1023)}, "precompiled_charsmap"),
    ("M12-child", "t5", {"precompiled_charsmap": charsmap(units={0: 4096 << 10})}, "precompiled_charsmap"),
    (
        "M12-child-far",
        "t5",
        {"precompiled_charsmap": charsmap(units={7: 5 << 10 | 1 << 9})},
        "precompiled_charsmap",
    ),
    (
        "M12-replacement",
        "t5",
        {"precompiled_charsmap": charsmap(units={9: 1 << 31 | 6})},
        "precompiled_charsmap",
    ),
    ("M12-no-zero", "t5", {"precompiled_charsmap": charsmap(strings=b"x")}, "precompiled_charsmap"),
    ("M13-type", "gpt2", {"pre": 5}, "pre"),
    (
        "M08-no-unknown",
        "bert",
        {"unknown_token_id": None, "tokens": ["▁a"], "token_type": ints(1), "scores": None},
        "unk",
    ),
]


def build(kind: str, changes: dict[Any, Any]) -> Any:
    metadata = toy_vocab.KINDS[kind]({key: value for key, value in changes.items() if isinstance(key, str)})
    for at, text in changes.items():
        if isinstance(at, int):
            metadata["tokenizer.ggml.tokens"][at] = text
    return build_tokenizer(metadata, source="x.gguf")


@pytest.mark.parametrize(("kind", "changes", "key"), [pytest.param(*row[1:], id=row[0]) for row in ERRORS])
def test_error_names_the_key(kind: str, changes: dict[Any, Any], key: str) -> None:
    with pytest.raises(ModelError) as error:
        build(kind, changes)
    line = str(error.value)
    assert line.startswith(f"x.gguf: tokenizer.ggml.{key}")
    assert "expected" in line and ", got" in line and "\n" not in line
    assert len(line) < 400


IDS = ["bos", "eos", "eot", "eom", "unknown", "padding", "mask", "seperator", "fim_pre", "fim_suf", "suffix"]


@pytest.mark.parametrize("value", [10**6, -5, 1 << 40])
@pytest.mark.parametrize("name", IDS)
def test_m07_ids_out_of_range_are_ignored_with_a_warning(
    name: str, value: int, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = build("gpt2", {f"{name}_token_id": value})
    found = [
        getattr(tokenizer.specials, field) for field in ("bos", "eos", "unk", "pad", "mask", "sep", "fim_suf")
    ]
    assert value not in found and value not in tokenizer.eog
    assert [record.message for record in caplog.records if f"{name}_token_id" in record.message]


def test_m07_minus_one_means_none() -> None:
    assert build("gpt2", {"bos_token_id": 0xFFFFFFFF}).bos is None


def test_m07_begin_token_wanted_and_missing(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = build("gpt2", {"add_bos_token": True})
    assert tokenizer.encode("hello") == tokenizer.encode("hello", bos=False)
    assert "add_bos_token" in caplog.text


def test_m08_longer_arrays_are_said(caplog: pytest.LogCaptureFixture) -> None:
    build("gpt2", {"token_type": np.ones(999, np.int32)})
    assert "tokenizer.ggml.token_type" in caplog.text


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma4"])
def test_m08_types_out_of_range(kind: str) -> None:
    changes = {"token_type": np.full(400, 77, np.int32)}
    if kind in ("llama", "gemma4"):
        changes["token_type"][:] = -1
    tokenizer = build(kind, changes)
    assert tokenizer.decode(tokenizer.encode("hi")) in ("", " ", "hi")


def test_m08_empty_token_has_a_name_of_its_own() -> None:
    tokenizer = build("gpt2", {5: ""})
    assert tokenizer.text(5) == "[EMPTY_5]"


def test_m10_text_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("satchel.formats.tokenizer.base.MAX_TEXT", 100)
    tokenizer = build("gpt2", {})
    assert len(tokenizer.encode("x" * 100)) == 100
    with pytest.raises(RequestError, match="at most 100 characters, got 101"):
        tokenizer.encode("x" * 101)


@pytest.mark.parametrize("merge", ["nothing here", "Ġhello <|im_end|>", "\u20ac \u20ac", "h \U0010ffff"])
def test_m11_merges_of_tokens_that_do_not_exist(merge: str, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = build("gpt2", {"merges": ["h e", "q z", merge]})
    assert [tokenizer.text(i) for i in tokenizer.encode("heqz")] == ["he", "q", "z"]
    assert "2 of 3" in caplog.text


def test_m11_bytes_without_a_token_are_said(caplog: pytest.LogCaptureFixture) -> None:
    build("gpt2", {10: "something"})
    assert "1 of 243 bytes" in caplog.text


def test_m11_bytes_that_no_text_holds_need_no_token(caplog: pytest.LogCaptureFixture) -> None:
    first = toy_vocab.byte_level()["tokenizer.ggml.tokens"].index("\u00f5")
    build("gpt2", {first: "something"})
    assert not caplog.text


def test_m12_table_that_is_right() -> None:
    tokenizer = build("t5", {"precompiled_charsmap": charsmap()})
    assert tokenizer.encode("a", bos=False) == tokenizer.encode("hello", bos=False)
    assert tokenizer.text(tokenizer.encode("a")[0]) == "▁hello"


@pytest.mark.parametrize("unit", ["a", " ", "1", "\n", "日", "<", "a ", "1a", "\u0301", "<|im_end|>"])
@pytest.mark.parametrize("kind", toy_vocab.KINDS)
def test_m13_long_runs(kind: str, unit: str) -> None:
    """200,000 characters of one kind, for which quadratic code would take minutes."""
    tokenizer = tokenizer_of(kind)
    text = unit * (200_000 // len(unit))
    ids = tokenizer.encode(text + "x", bos=False, special=True)
    assert len(ids) <= 4 * len(text)
    if kind == "gpt2":
        assert tokenizer.decode(ids, special=True) == text + "x"


@functools.cache
def tokenizer_of(kind: str) -> Any:
    logging.disable(logging.WARNING)
    try:
        return build(kind, {})
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    "pre", ["deepseek-llm", "tiny_aya", "superbpe", "afmoe", "gpt-4o", "exaone-moe", "default"]
)
@pytest.mark.parametrize("unit", ["1", " ", "A", "\u0301"])
def test_m13_long_runs_in_patterns(pre: str, unit: str) -> None:
    text = unit * 100_000
    tokenizer = build("gpt2", {"pre": pre})
    assert tokenizer.decode(tokenizer.encode(text + "x", bos=False)) == text + "x"


def test_limits_leave_room_for_real_vocabularies() -> None:
    assert vocab_module.MAX_ENTRIES > 1_000_000
