"""Rows M06, M10 and M22: expert counts, texts beyond every count, importance data with false sizes."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import tiny
import toy_vocab

from satchel.errors import ModelError, RequestError
from satchel.formats.gguf import TensorSource, write_gguf
from satchel.formats.imatrix import open_importance
from satchel.formats.tokenizer import build_tokenizer
from satchel.formats.tokenizer.base import MAX_TEXT
from satchel.runtime.layers.arch import Cache

EXPERTS = [
    ("M06-none-used", "expert_used_count", 0),
    ("M06-more-used-than-there-are", "expert_used_count", tiny.EXPERTS + 1),
    ("M06-used-negative", "expert_used_count", -1),
    ("M06-used-2^32-1", "expert_used_count", (1 << 32) - 1),
    ("M06-no-experts", "expert_count", 0),
    ("M06-experts-negative", "expert_count", -8),
    ("M06-experts-as-text", "expert_count", "7"),
    ("M06-experts-of-no-tensor", "expert_count", tiny.EXPERTS - 1),
    ("M06-no-width", "expert_feed_forward_length", 0),
]


@pytest.mark.parametrize(("key", "value"), [pytest.param(*case[1:], id=case[0]) for case in EXPERTS])
def test_expert_counts(key: str, value: object) -> None:
    with pytest.raises(ModelError, match=r"expert|ffn_") as refused:
        tiny.build("qwen3moe", tiny.weights("qwen3moe"), Cache(32), **{key: value})
    assert "\n" not in str(refused.value)


def test_m10_a_text_beyond_every_count_is_refused_before_it_is_touched() -> None:
    made = build_tokenizer(toy_vocab.byte_level())
    with pytest.raises(RequestError, match=f"at most {MAX_TEXT:,} characters, got {MAX_TEXT + 1:,}"):
        made.encode("a" * (MAX_TEXT + 1))


def test_m10_a_long_text_has_all_of_its_tokens() -> None:
    made = build_tokenizer(toy_vocab.sentencepiece())
    ids = made.encode("\x01" * 300_000, bos=False)
    assert len(ids) >= 300_000 and made.decode(ids).lstrip(" ") == "\x01" * 300_000


def entry(name: bytes, calls: int, values: int, data: bytes, length: int | None = None) -> bytes:
    size = len(name) if length is None else length
    return struct.pack("<i", size) + name + struct.pack("<2i", calls, values) + data


ONE = struct.pack("<f", 1.0)
# id, bytes of a .dat
DAT = [
    ("M22-empty", b""),
    ("M22-three-bytes", b"abc"),
    ("M22-no-entries", struct.pack("<i", 0)),
    ("M22-2^31-entries", struct.pack("<I", 1 << 31) + entry(b"a", 1, 1, ONE)),
    ("M22-2^31-1-entries", struct.pack("<i", (1 << 31) - 1) + entry(b"a", 1, 1, ONE)),
    ("M22-one-entry-too-many", struct.pack("<i", 2) + entry(b"a", 1, 1, ONE)),
    ("M22-name-of-negative-length", struct.pack("<i", 1) + entry(b"a", 1, 1, ONE, length=-1)),
    ("M22-name-of-2^31-1", struct.pack("<i", 1) + entry(b"a", 1, 1, ONE, length=(1 << 31) - 1)),
    ("M22-values-negative", struct.pack("<i", 1) + entry(b"a", 1, -4, ONE)),
    ("M22-values-2^31-1", struct.pack("<i", 1) + entry(b"a", 1, (1 << 31) - 1, ONE)),
    ("M22-no-values", struct.pack("<i", 1) + entry(b"a", 1, 0, b"")),
    ("M22-calls-negative", struct.pack("<i", 1) + entry(b"a", -1, 1, ONE)),
    ("M22-twice", struct.pack("<i", 2) + entry(b"a", 1, 1, ONE) * 2),
    ("M22-nan", struct.pack("<i", 1) + entry(b"a", 1, 1, struct.pack("<f", float("nan")))),
    ("M22-negative", struct.pack("<i", 1) + entry(b"a", 1, 1, struct.pack("<f", -1.0))),
    ("M22-cut-in-the-values", struct.pack("<i", 1) + entry(b"a", 1, 2, ONE)),
]


@pytest.mark.parametrize("raw", [pytest.param(case[1], id=case[0]) for case in DAT])
def test_importance_data_of_the_old_form(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "i.dat"
    path.write_bytes(raw)
    with pytest.raises(ModelError) as refused:
        open_importance(path).close()
    assert str(path) in str(refused.value) and str(refused.value).isprintable()


def tensor(name: str, *shape: int, format: str = "f32", value: float = 1.0) -> TensorSource:
    dtype = {"f32": np.float32, "f16": np.float16}[format]
    return TensorSource(name, shape, format, np.full(shape, value, dtype))


GOOD = [tensor("w.in_sum2", 1, 4), tensor("w.counts", 1, 1)]
# id, tensors of a GGUF
GGUF = [
    ("M22-no-tensors", []),
    ("M22-other-tensors", [tensor("w", 4)]),
    ("M22-counts-missing", GOOD[:1]),
    ("M22-counts-empty", [GOOD[0], tensor("w.counts", 0, 1)]),
    ("M22-sums-empty", [tensor("w.in_sum2", 1, 0), GOOD[1]]),
    ("M22-counts-of-other-rows", [GOOD[0], tensor("w.counts", 3, 1)]),
    ("M22-sums-in-f16", [tensor("w.in_sum2", 1, 4, format="f16"), GOOD[1]]),
    ("M22-sums-nan", [tensor("w.in_sum2", 1, 4, value=np.nan), GOOD[1]]),
    ("M22-counts-negative", [GOOD[0], tensor("w.counts", 1, 1, value=-1)]),
    ("M22-products-of-another-width", [*GOOD, tensor("w.in_products", 9)]),
    ("M22-products-infinite", [*GOOD, tensor("w.in_products", 10, value=np.inf)]),
]


@pytest.mark.parametrize("tensors", [pytest.param(case[1], id=case[0]) for case in GGUF])
def test_importance_data_in_gguf(tensors: list[TensorSource], tmp_path: Path) -> None:
    path = tmp_path / "i.gguf"
    write_gguf(path, {"general.type": "imatrix"}, tensors)
    with pytest.raises(ModelError) as refused, open_importance(path) as found:
        found.hessian("w")
    assert str(path) in str(refused.value) and str(refused.value).isprintable()


def test_sound_importance_data_is_read(tmp_path: Path) -> None:
    path = tmp_path / "i.gguf"
    write_gguf(path, {"general.type": "imatrix"}, [*GOOD, tensor("w.in_products", 10)])
    with open_importance(path) as found:
        diagonal = found.diagonal("w")
        assert diagonal is not None and diagonal.tolist() == [1, 1, 1, 1]
        assert found.hessian("w") is not None
