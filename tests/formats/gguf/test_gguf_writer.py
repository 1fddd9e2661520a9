"""Written files read back the same, by us and by the gguf package; a failed write leaves nothing behind."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from satchel.errors import RequestError
from satchel.formats.gguf import (
    TENSOR_TYPES,
    Metadata,
    StringArray,
    TensorSource,
    Typed,
    ValueType,
    open_gguf,
    sources,
    typed,
    write_gguf,
)
from satchel.formats.gguf.atomic import write_all
from satchel.formats.gguf.types import DTYPES

EXTREMES: dict[ValueType, list[Any]] = {
    kind: [int(np.iinfo(dtype).min), 0, int(np.iinfo(dtype).max)]
    for kind, dtype in DTYPES.items()
    if dtype.kind in "iu"
} | {
    ValueType.FLOAT32: [float(np.float32(0.1)), -0.0, 3.4028234663852886e38, 2.0**-149, float("inf")],
    ValueType.FLOAT64: [0.1, -0.0, 1.7976931348623157e308, 5e-324, float("-inf")],
    ValueType.BOOL: [True, False],
    ValueType.STRING: ["", "plain", "naïve ☃ 𝄞", "a\0b\nc", "x" * 70_000],
}


def everything() -> dict[str, Typed]:
    """Every value type at its extremes, alone and in arrays, also empty ones."""
    values = {"general.architecture": typed("none")}
    for kind, items in EXTREMES.items():
        values |= {f"one.{kind.name}.{i}": typed(item, kind) for i, item in enumerate(items)}
        values[f"many.{kind.name}"] = typed(items, kind)
        values[f"none.{kind.name}"] = typed([], kind)
    return values


def random_tensors(seed: int = 0) -> list[TensorSource]:
    """A tensor of every type, of 0 to 4 dimensions, with sizes that need padding."""
    random = np.random.default_rng(seed)
    tensors = []
    for number, kind in TENSOR_TYPES.items():
        shape = (
            *random.integers(1, 4, random.integers(0, 4)).tolist(),
            kind.block * int(random.integers(1, 4)),
        )
        nbytes = int(np.prod(shape)) // kind.block * kind.size
        tensors.append(TensorSource(f"t.{kind.name}", shape, number, random.bytes(nbytes)))
    scalar = TensorSource("scalar", (), "f64", np.float64(0.5).tobytes())
    return [*tensors, scalar, TensorSource("empty", (3, 0), "f32", b"")]


def read_all(path: Path) -> tuple[dict[str, Typed], dict[str, tuple[Any, ...]]]:
    with open_gguf(path) as model:
        values = {key: model.metadata.typed(key) for key in model.metadata}
        tensors = {n: (t.shape, t.type_id, model.raw(n).tobytes()) for n, t in model.tensors.items()}
    return values, tensors


def same(a: Typed, b: Typed) -> bool:
    if isinstance(a.value, np.ndarray) and isinstance(b.value, np.ndarray):
        return a.element is b.element and a.value.tobytes() == b.value.tobytes()
    return (a.type, a.element, repr(a.value), a.value) == (b.type, b.element, repr(b.value), b.value)


@pytest.mark.parametrize("alignment", [None, 1, 64, 4096])
def test_round_trip_keeps_every_type_to_the_bit(alignment: int | None, tmp_path: Path) -> None:
    values, tensors = everything(), random_tensors()
    (path,) = write_gguf(tmp_path / "m.gguf", values, tensors, alignment=alignment)
    read_values, read_tensors = read_all(path)
    found = read_values.pop("general.alignment", None)
    assert (found.value if found else None) == alignment
    assert list(read_values) == list(values)
    assert [key for key in values if not same(values[key], read_values[key])] == []
    assert read_tensors == {t.name: (t.shape, t.type_id, t.data) for t in tensors}
    with open_gguf(path) as model:
        (again,) = write_gguf(tmp_path / "again.gguf", model.metadata, sources(model))
    assert again.read_bytes() == path.read_bytes()


def test_the_gguf_package_reads_what_we_write(tmp_path: Path) -> None:
    values = {key: value for key, value in everything().items() if not key.startswith("none.")}
    known = set(map(int, gguf.GGML_QUANT_SIZES))  # neither the extension types nor ggml's newest
    theirs_too = [t for t in random_tensors(1) if t.type_id in known]
    tensors = [t for t in theirs_too if t.name not in ("scalar", "empty")]
    (path,) = write_gguf(tmp_path / "m.gguf", values, tensors, alignment=64)
    reader = gguf.GGUFReader(path)
    assert reader.alignment == 64
    for key, value in values.items():
        field = reader.fields[key]
        assert [int(kind) for kind in field.types[:2]] == [
            k for k in (value.type, value.element) if k is not None
        ]
        wanted = value.value.tolist() if isinstance(value.value, np.ndarray | StringArray) else value.value
        assert field.contents() == wanted, key
    assert [t.name for t in reader.tensors] == [t.name for t in tensors]
    for theirs, ours in zip(reader.tensors, tensors, strict=True):
        assert tuple(theirs.shape.tolist()[::-1]) == ours.shape
        assert int(theirs.tensor_type) == ours.type_id
        assert theirs.data.tobytes() == ours.data


@pytest.mark.parametrize("max_size", [1, 500, 3000, 10**9])
def test_split_and_merge(max_size: int, tmp_path: Path) -> None:
    values, tensors = everything(), random_tensors(2)
    (whole,) = write_gguf(tmp_path / "whole.gguf", values, tensors)
    paths = write_gguf(tmp_path / "cut.gguf", values, tensors, max_size=max_size)
    assert (len(paths) > 1) == (max_size < 10**9)
    with open_gguf(paths[-1]) as model:
        assert all(part.size - part.data_offset <= max(max_size, 8192) for part in model.parts)
        assert list(model.tensors) == [tensor.name for tensor in tensors]
        (merged,) = write_gguf(tmp_path / "merged.gguf", model.metadata, sources(model))
    assert merged.read_bytes() == whole.read_bytes()


def test_a_file_can_be_written_over_itself(tmp_path: Path) -> None:
    (path,) = write_gguf(tmp_path / "m.gguf", everything(), random_tensors())
    before = read_all(path)
    with open_gguf(path) as model:
        write_gguf(path, model.metadata, sources(model))
    after = read_all(path)
    assert after[1] == before[1] and list(after[0]) == list(before[0])


def test_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.gguf", tmp_path / "link.gguf"
    link.symlink_to(real)
    write_gguf(link, {"a": 1}, [])
    assert link.is_symlink() and read_all(real)[0]["a"].value == 1


def test_data_in_pieces_and_progress(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    seen: list[int] = []
    calls: list[Callable[[], Any]] = [
        lambda: iter(rows),
        lambda: rows[:, ::-1][:, ::-1],
        lambda: [rows.tobytes(), b""],
    ]
    tensors = [TensorSource(f"t{i}", (3, 4), "f32", call) for i, call in enumerate(calls)]
    (path,) = write_gguf(tmp_path / "m.gguf", {}, tensors, progress=seen.append)
    assert sum(seen) == 3 * 48
    with open_gguf(path) as model:
        assert all(np.array_equal(model.array(name), rows) for name in model.tensors)


def fail_after(error: BaseException) -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        yield bytes(8)
        raise error

    return pieces


@pytest.mark.parametrize("max_size", [None, 16])
@pytest.mark.parametrize(
    ("data", "error"),
    [
        (fail_after(KeyboardInterrupt()), KeyboardInterrupt),
        (fail_after(MemoryError()), MemoryError),
        (fail_after(OSError(28, "No space left on device")), RequestError),
        (bytes(15), ValueError),
        (bytes(17), ValueError),
    ],
    ids=["ctrl-c", "memory", "disk-full", "too-few-bytes", "too-many-bytes"],
)
def test_failure_leaves_what_was_there(
    data: bytes | Callable[[], Iterator[bytes]],
    error: type[BaseException],
    max_size: int | None,
    tmp_path: Path,
) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {"a": 1}, [])
    before = path.read_bytes()
    tensors = [TensorSource("ok", (4,), "f32", bytes(16)), TensorSource("bad", (4,), "f32", data)]
    with pytest.raises(error):
        write_gguf(path, {"a": 2}, tensors, max_size=max_size)
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.gguf"]
    assert path.read_bytes() == before


def tensor(name: str = "x", shape: tuple[int, ...] = (32,), kind: int | str = "f32") -> TensorSource:
    return TensorSource(name, shape, kind, b"")


REFUSED: list[tuple[str, dict[str, Any], list[TensorSource], dict[str, Any], str]] = [
    ("empty-key", {"": 1}, [], {}, "1 to 65535 bytes"),
    ("long-key", {"k" * 65536: 1}, [], {}, "got 65536"),
    ("newline-key", {"a\nb": 1}, [], {}, "printable"),
    ("long-name", {}, [tensor("n" * 64)], {}, "1 to 63 bytes, got 64"),
    ("name-twice", {}, [tensor("a", (0,)), tensor("a", (0,))], {}, "each name once"),
    ("unknown-type", {}, [tensor(kind=99)], {}, "got 99"),
    ("removed-type", {}, [tensor(kind=4)], {}, "ggml removed"),
    ("unknown-format", {}, [tensor(kind="q9_z")], {}, "expected one of f32, .*got 'q9_z'"),
    ("half-block", {}, [tensor(shape=(33,), kind="q8_0")], {}, "multiple of 32"),
    ("five-dimensions", {}, [tensor(shape=(1,) * 5)], {}, "at most 4 dimensions"),
    ("negative-dimension", {}, [tensor(shape=(-1,))], {}, "dimensions from 0"),
    ("huge", {}, [tensor(shape=(1 << 62, 2))], {}, "below 2"),
    ("alignment-3", {}, [], {"alignment": 3}, "power of two"),
    ("alignment-0", {}, [], {"alignment": 0}, "power of two"),
    ("surrogate", {"a": "\ud800"}, [], {}, "surrogate"),
    ("too-large-integer", {"a": 1 << 64}, [], {}, "expected uint64"),
    ("object", {"a": object()}, [], {}, "expected a value"),
    ("none", {"a": None}, [], {}, "expected a value"),
    ("mixed-list", {"a": [1, "x"]}, [], {}, "expected a sequence of numbers"),
    ("mixed-strings", {"a": ["x", 1]}, [], {}, "expected strings"),
    ("large-in-list", {"a": [1 << 40]}, [], {}, "expected an array of int32"),
    ("empty-list", {"a": []}, [], {}, "element type"),
    ("matrix", {"a": np.zeros((2, 2), np.float32)}, [], {}, "flat array"),
    ("complex", {"a": np.zeros(2, np.complex64)}, [], {}, "flat array"),
]


@pytest.mark.parametrize(
    ("values", "tensors", "options", "match"), [pytest.param(*case[1:], id=case[0]) for case in REFUSED]
)
def test_what_could_not_be_read_is_not_written(
    values: dict[str, Any], tensors: list[TensorSource], options: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=match):
        write_gguf(tmp_path / "m.gguf", values, tensors, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["missing-folder", "folder", "fifo"])
def test_places_that_cannot_be_written(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    if kind == "missing-folder":
        path = path / "deep.gguf"
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(RequestError, match=r"m\.gguf"):
        write_gguf(path, {"a": 1}, [])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (ValueType.UINT8, 256),
        (ValueType.UINT8, -1),
        (ValueType.INT8, 128),
        (ValueType.UINT64, 1 << 64),
        (ValueType.UINT32, 1.0),
        (ValueType.UINT32, True),
        (ValueType.BOOL, 1),
        (ValueType.FLOAT32, 1e39),
        (ValueType.FLOAT32, "1"),
        (ValueType.STRING, 1),
        (ValueType.ARRAY, 1),
    ],
)
def test_value_out_of_its_type_is_refused(kind: ValueType, value: bool | int | float | str) -> None:
    with pytest.raises(RequestError, match=f"expected {kind.name.lower()}"):
        typed(value, kind)


def test_metadata_can_be_made_in_memory() -> None:
    values = Metadata.of(
        {"u": 1, "i": -1, "w": 1 << 40, "f": 0.5, "b": True, "s": "x", "l": [1, 2], "t": ["a", b"\xff"]}
    )
    names = [values.typed(key).type_name for key in values]
    numbers = ["uint32", "int32", "uint64", "float32", "bool", "string"]
    assert names == [*numbers, "array of int32", "array of string"]


def test_a_file_without_a_buffer_is_written_to_its_end() -> None:
    class Narrow(io.RawIOBase):
        """Accepts three bytes at a time, like a full pipe or disk."""

        def __init__(self) -> None:
            self.taken = b""

        def write(self, data: Any) -> int:
            self.taken += bytes(data[:3])
            return min(3, len(data))

    file = Narrow()
    write_all(file, b"0123456789")  # type: ignore[arg-type]
    assert file.taken == b"0123456789"
