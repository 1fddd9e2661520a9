"""Edited files: types are kept, everything else stays byte for byte, and no unreadable file is written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import mini_file
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.errors import RequestError
from satchel.formats.gguf import Metadata, TensorSource, ValueType, open_gguf, typed, write_gguf
from satchel.formats.gguf.edit import TYPES, change, parse_assignment, write_edited

METADATA = Metadata.of(
    {
        "u8": typed(1, ValueType.UINT8),
        "i64": typed(-1, ValueType.INT64),
        "f32": 0.5,
        "f64": typed(0.5, ValueType.FLOAT64),
        "flag": True,
        "text": "x",
        "words": ["a", "b"],
        "numbers": np.array([1, 2], np.uint16),
        "floats": np.array([0.5], np.float32),
        "with:colon": 1,
        "split.count": 1,
        "general.alignment": 32,
    }
)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("u8=255", "uint8", 255),
        ("u8=0x0f", "uint8", 15),
        ("u8:uint16=300", "uint16", 300),
        ("i64=-5", "int64", -5),
        ("f32=1e-5", "float32", 1e-5),
        ("f32=7", "float32", 7.0),
        ("f64=.25", "float64", 0.25),
        ("f32=nan", "float32", "nan"),
        ("flag=false", "bool", False),
        ("text=", "string", ""),
        ("text=a=b: c\n", "string", "a=b: c\n"),
        ("text=7", "string", "7"),
        ("text=@@home", "string", "@home"),
        ("words=[]", "array of string", []),
        ('words=["x", "\u00e9"]', "array of string", ["x", "\u00e9"]),
        ("numbers=[65535]", "array of uint16", [65535]),
        ("floats=[1, 2.5]", "array of float32", [1.0, 2.5]),
        ("with:colon=2", "uint32", 2),
        ("new=1", "uint32", 1),
        ("new=-1", "int32", -1),
        ("new=4294967296", "uint64", 1 << 32),
        ("new=1.0", "float32", 1.0),
        ("new=TRUE", "bool", True),
        ("new=[1, 2]", "array of int32", [1, 2]),
        ("new=hello", "string", "hello"),
        ("new:string=7", "string", "7"),
        ("new:int8[]=[-128, 127]", "array of int8", [-128, 127]),
        ("new:bool[]=[true]", "array of bool", [True]),
        ("new:str[]=[]", "array of string", []),
        ("a:b:float64=2", "float64", 2.0),
    ],
)
def test_assignments(text: str, kind: str, value: Any) -> None:
    key, found = parse_assignment(text, METADATA)
    assert key in text and found.type_name == kind
    got = found.value.tolist() if hasattr(found.value, "tolist") else found.value
    assert (got == pytest.approx(value) if isinstance(value, float) else got == value) or str(got) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "=", "=1", "u8", "u8=256", "u8=-1", "u8=1.0", "u8=one", "u8=", "u8=01", "u8=0x", "u8= 1 2",
        "i64=9223372036854775808", "f32=1e39", "f32=x", "f32=1_0", "flag=1", "flag=yes", "words=x",
        "words=[1]", "floats=[1e39]", "floats=[true]", "flags:bool[]=[1]", "n:int8[]=[\"1\"]",
        'words={"a":1}', "words=[", "numbers=[65536]", "numbers=[1.5]", "numbers=[true]", "numbers=[null]",
        "floats=[[1]]", "new:uint9=1", "new:array=1", "new:int8[]=7", "new=[]", "new=[1,\"x\"]", "text=@",
        "text=@no-such-file", "text=@\0", "words=" + "[" * 100_000, "new=\ud800",
    ],
)  # fmt: skip
def test_what_is_no_assignment_is_one_line(text: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_assignment(text, METADATA)
    assert str(refused.value).isprintable() and len(str(refused.value)) < 400


def test_a_value_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text("{{ 'é' }}\n")
    assert parse_assignment(f"text=@{path}", METADATA)[1].value == "{{ 'é' }}\n"
    path.write_bytes(b"\xff")
    with pytest.raises(RequestError, match="UTF-8"):
        parse_assignment(f"text=@{path}", METADATA)


@given(st.text(max_size=40), st.sampled_from(sorted(TYPES)))
def test_any_text_is_an_assignment_or_one_error(text: str, kind: str) -> None:
    for line in (text, f"u8={text}", f"new:{kind}={text}", f"new:{kind}[]={text}"):
        if "=@" in line:
            continue
        try:
            key, value = parse_assignment(line, METADATA)
        except RequestError:
            continue
        assert change(METADATA, sets=[(key, value)]).typed(key) is value if key not in FIXED else True


FIXED = ("split.no", "split.count", "split.tensors.count", "general.alignment")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"removes": ["none"]}, "expected a key of the file"),
        ({"renames": [("none", "x")]}, "expected a key of the file"),
        ({"renames": [("u8", "i64")]}, "expected a new name"),
        ({"removes": ["split.count"]}, "describes the file"),
        ({"renames": [("text", "general.alignment")]}, "describes the file"),
        ({"sets": [("general.alignment", typed(64))]}, "describes the file"),
    ],
)
def test_changes_that_cannot_be(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(RequestError, match=match):
        change(METADATA, **changes)


def test_order_and_the_others_stay() -> None:
    made = change(
        METADATA, sets=[("f32", typed(1.0)), ("z", typed(1))], removes=["flag"], renames=[("text", "said")]
    )
    wanted = [{"text": "said"}.get(key, key) for key in METADATA if key != "flag"]
    assert list(made) == [*wanted, "z"]
    assert all(made.typed(k) is METADATA.typed(k) for k in made if k in METADATA and k != "f32")


def edited(path: Path, target: Path | None = None, **changes: Any) -> None:
    with open_gguf(path) as gguf:
        write_edited(gguf, change(gguf.metadata, **changes), target)


def test_there_and_back_is_the_same_file(tmp_path: Path) -> None:
    path = mini_file.write_mini(tmp_path / "m.gguf", {"general.alignment": 64, "z.last": "x"})
    whole = path.read_bytes()
    path.chmod(0o640)
    edited(path, sets=[("llama.rope.freq_base", typed(2.0)), ("new", typed("é" * 100))])
    assert path.read_bytes() != whole and path.stat().st_mode & 0o777 == 0o640
    edited(path, sets=[("llama.rope.freq_base", typed(10000.0))], removes=["new"])
    assert path.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [path]


def test_only_the_keys_of_a_peers_file_change(tmp_path: Path) -> None:
    """A file of the gguf package: its keys keep their order, and the tensors' bytes their place."""
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("one")
    writer.add_array("list", [1, 2, 3])
    writer.add_float64("wide", 0.1)
    writer.add_tensor("t", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    whole = path.read_bytes()
    edited(path, sets=[("general.name", typed("two"))])
    assert path.read_bytes() == whole.replace(b"\x03\0\0\0\0\0\0\0one", b"\x03\0\0\0\0\0\0\0two")
    edited(path, sets=[("general.name", typed("somewhat longer"))])
    fields = gguf.GGUFReader(path)
    assert fields.fields["general.name"].contents() == "somewhat longer"
    assert fields.fields["list"].contents() == [1, 2, 3] and fields.fields["wide"].contents() == 0.1
    assert np.array_equal(fields.tensors[0].data, np.arange(12, dtype=np.float32).reshape(3, 4))


def test_of_a_set_the_first_part_alone_is_written(tmp_path: Path) -> None:
    first = mini_file.write_mini(tmp_path / "m.gguf", max_size=4096)
    parts = sorted(tmp_path.iterdir())
    before = {part: part.read_bytes() for part in parts}
    edited(parts[2], sets=[("llama.rope.freq_base", typed(5.0))])
    after = {part: part.read_bytes() for part in sorted(tmp_path.iterdir())}
    assert [part for part in parts if before[part] != after[part]] == [first]
    with open_gguf(parts[1]) as gguf:
        assert gguf.metadata["llama.rope.freq_base"] == 5.0 and len(gguf.tensors) == 11
    with pytest.raises(RequestError, match="merge it first"):
        edited(first, tmp_path / "n.gguf", removes=["llama.rope.freq_base"])


def test_a_failure_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """The last byte of the tensors is missing when they are copied."""
    path = tmp_path / "m.gguf"
    write_gguf(path, {"a": 1}, [TensorSource("t", (4, 32), "f32", np.zeros((4, 32), np.float32))])
    with open_gguf(path) as gguf:
        os.truncate(path, path.stat().st_size - 8)
        cut = path.read_bytes()
        with pytest.raises(Exception, match="got the end"):
            write_edited(gguf, change(gguf.metadata, sets=[("a", typed(2))]))
    assert path.read_bytes() == cut and list(tmp_path.iterdir()) == [path]


def test_what_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    path = mini_file.write_mini(tmp_path / "m.gguf")
    whole = path.read_bytes()
    for key in ("", "line\nbreak", "k" * 70_000):
        with pytest.raises(RequestError):
            edited(path, sets=[(key, typed(1))])
    assert path.read_bytes() == whole
