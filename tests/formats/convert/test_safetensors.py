"""The safetensors reader: files of the format's own library are read bit for bit, and every false claim in a
header is one line.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_checkpoint
from hypothesis import given
from hypothesis import strategies as st

from satchel.errors import ModelError
from satchel.formats.convert.safetensors import SafetensorsFile


def file(tmp_path: Path, raw: bytes) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw)
    return path


def packed(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_what_the_library_writes_is_read_to_the_bit(tmp_path: Path) -> None:
    save = pytest.importorskip("safetensors.numpy", reason="the safetensors package is a development extra")
    rng = np.random.default_rng(0)
    values = {
        "f32": rng.standard_normal((3, 5)).astype(np.float32),
        "f16": rng.standard_normal((7,)).astype(np.float16),
        "i8": rng.integers(-128, 127, (2, 3, 4), dtype=np.int8),
        "i32": rng.integers(-(2**31), 2**31 - 1, (4, 4), dtype=np.int32),
        "i64": np.array(5, np.int64),
        "empty": np.zeros((0, 3), np.float32),
        "u8": np.arange(256, dtype=np.uint8),
    }
    path = tmp_path / "model.safetensors"
    save.save_file(values, str(path), metadata={"format": "np"})
    opened = SafetensorsFile(path)
    assert set(opened.tensors) == set(values)
    for name, want in values.items():
        got = opened.tensors[name]
        assert got.shape == want.shape and np.array_equal(got.all(), want)
    part = opened.tensors["i8"].read(1, 2)
    assert np.array_equal(part, values["i8"][1:2])
    opened.close()
    with pytest.raises(ValueError, match="closed"):
        opened.tensors["f32"].all()


def test_what_the_tests_write_the_library_reads(tmp_path: Path) -> None:
    load = pytest.importorskip("safetensors.numpy", reason="the safetensors package is a development extra")
    values = toy_checkpoint.tensors("qwen2")
    got = load.load(toy_checkpoint.safetensors(toy_checkpoint.stored(values)))
    assert all(np.array_equal(got[name], values[name]) for name in values)


BAD: list[tuple[str, bytes, str]] = [
    ("S1 empty file", b"", "at least 8 bytes, got 0"),
    ("S2 seven bytes", b"1234567", "at least 8 bytes, got 7"),
    ("S3 header longer than the file", (1 << 40).to_bytes(8, "little") + b"{}", "length of the header"),
    ("S4 header length 2^64 - 1", b"\xff" * 8 + b"{}", "length of the header"),
    ("S5 header length 0", bytes(8), "length of the header"),
    ("S6 no JSON", packed(b"{nope"), "expected JSON"),
    ("S7 no object", packed(b"[1, 2]"), "expected a JSON object"),
    ("S8 no UTF-8", packed(b'{"\xff": 1}'), "expected JSON"),
    ("S9 nested deeply", packed(b'{"a":' + b"[" * 200_000), "expected JSON"),
    (
        "S10 a name twice",
        packed(b'{"a": %s, "a": %s}' % ((json.dumps(entry()).encode(),) * 2), bytes(8)),
        "once",
    ),
    ("S11 unknown dtype", packed({"a": entry("F4")}, bytes(8)), "expected a dtype"),
    ("S12 no dtype", packed({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)), "expected a dtype"),
    ("S13 negative dimension", packed({"a": entry(shape=[-2])}, bytes(8)), "expected a shape"),
    ("S14 a fraction", packed({"a": entry(shape=[2.0])}, bytes(8)), "expected a shape"),
    ("S15 a bool", packed({"a": entry(shape=[True, 2])}, bytes(8)), "expected a shape"),
    ("S16 overflowing shape", packed({"a": entry(shape=[1 << 40, 1 << 40])}, bytes(8)), "expected a shape"),
    (
        "S17 many dimensions",
        packed({"a": entry(shape=[1] * 9, offsets=[0, 4])}, bytes(4)),
        "expected a shape",
    ),
    ("S18 shape and offsets disagree", packed({"a": entry(offsets=[0, 4])}, bytes(8)), "expected 8 bytes"),
    ("S19 offsets beyond the file", packed({"a": entry(offsets=[8, 16])}, bytes(8)), "expected 8 bytes"),
    ("S20 offsets backwards", packed({"a": entry(offsets=[8, 0])}, bytes(8)), "expected 8 bytes"),
    ("S21 one offset", packed({"a": entry(offsets=[0])}, bytes(8)), "two data_offsets"),
    (
        "S22 overlap",
        packed({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)),
        "data from offset 8, got 4",
    ),
    (
        "S23 a hole",
        packed({"a": entry(), "b": entry(offsets=[12, 20])}, bytes(20)),
        "data from offset 8, got 12",
    ),
    ("S24 data after the last", packed({"a": entry()}, bytes(9)), "bytes by its header"),
    ("S25 cut short", packed({"a": entry()}, bytes(7)), "expected 8 bytes"),
    ("S26 an entry that is no object", packed({"a": 3}), "expected a dtype"),
    ("S27 the same bytes twice", packed({"a": entry(), "b": entry()}, bytes(8)), "data from offset 8, got 0"),
]


@pytest.mark.parametrize(("raw", "said"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_lie_in_the_header_is_one_line(raw: bytes, said: str, tmp_path: Path) -> None:
    path = file(tmp_path, raw)
    with pytest.raises(ModelError) as error:
        SafetensorsFile(path)
    text = str(error.value)
    assert text.startswith(str(path)) and said in text and "\n" not in text and len(text) < 500


@given(cut=st.integers(0, 400), put=st.binary(min_size=1, max_size=3))
def test_a_damaged_header_is_read_or_refused(
    cut: int, put: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    values = {"a": np.ones((2, 3), np.float32), "b.weight": np.ones(4, np.float32)}
    raw = bytearray(toy_checkpoint.safetensors(toy_checkpoint.stored(values)))
    raw[cut : cut + len(put)] = put
    path = file(tmp_path_factory.getbasetemp(), bytes(raw))
    try:
        opened = SafetensorsFile(path)
    except ModelError as error:
        assert "\n" not in str(error)
        return
    for tensor in opened.tensors.values():
        assert tensor.all().shape == tensor.shape
    opened.close()


def test_a_file_that_shrinks_is_an_error_and_no_signal(tmp_path: Path) -> None:
    path = file(tmp_path, packed({"a": entry()}, bytes(8)))
    opened = SafetensorsFile(path)
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(ModelError, match="got the end"):
        opened.tensors["a"].all()
    opened.close()


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo"])
def test_what_is_no_file_is_one_line(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(ModelError, match=str(path)):
        SafetensorsFile(path)
