"""GGUF files in the file system: special files, files that change while open, split sets (rows G19, G22,
G24).
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TypeAlias

import numpy as np
import pytest

from satchel.errors import ModelError
from satchel.formats.gguf import TensorSource, Typed, open_gguf, opened, sources, write_gguf

Keys: TypeAlias = dict[str, int | float | str | Typed]
HEX = np.arange(64, dtype=np.float32)


def write_small(path: Path, count: int = 4, max_size: int | None = None, **more: int | str) -> list[Path]:
    """A model of `count` tensors of 256 bytes."""
    tensors = [TensorSource(f"t{i}", (2, 32), "f32", HEX + i) for i in range(count)]
    return write_gguf(path, {"general.architecture": "none", **more}, tensors, max_size=max_size)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def make_fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def make_loop(path: Path) -> Path:
    path.symlink_to(path)
    return path


def make_sparse(path: Path) -> Path:
    with path.open("wb") as file:
        file.truncate(1 << 40)
    return path


def make_sparse_string(path: Path) -> Path:
    """A header that (rightly) states a string of nearly a terabyte."""
    with path.open("wb") as file:
        claim = (1 << 40) - 49
        file.write(b"GGUF\x03\0\0\0" + bytes(8) + b"\1" + bytes(7) + b"\1" + bytes(7) + b"k\x08\0\0\0")
        file.write(claim.to_bytes(8, "little"))
        file.truncate(1 << 40)
    return path


def make_socket(path: Path) -> Path:
    listener = socket.socket(socket.AF_UNIX)
    os.chdir(path.parent)  # a socket's path has at most 107 bytes
    listener.bind(path.name)
    listener.close()
    return path


SPECIAL: list[tuple[str, Callable[[Path], Path], str]] = [
    ("missing", lambda path: path, "No such file"),
    ("directory", lambda path: path.parent, "a directory"),
    ("fifo", make_fifo, "a pipe"),
    ("socket", make_socket, "can't be read"),
    ("random", lambda path: Path("/dev/random"), "a device"),
    ("zero", lambda path: Path("/dev/zero"), "a device"),
    ("null", lambda path: Path("/dev/null"), "a device"),
    ("symlink-loop", make_loop, "symbolic links"),
    ("nul-in-path", lambda path: Path("a\0b"), "can't be read"),
    ("long-name", lambda path: Path("n" * 5000), "too long"),
    ("file-as-folder", lambda path: make_sparse(path) / "x", "Not a directory"),
    ("sparse-1TB", make_sparse, "expected 'GGUF'"),
    ("sparse-1TB-string", make_sparse_string, "within 268435456 bytes"),
]


@pytest.mark.parametrize(
    ("make", "match"), [pytest.param(*case[1:], id=f"G24-{case[0]}") for case in SPECIAL]
)
def test_special_file_is_refused_at_once(
    make: Callable[[Path], Path], match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = make(tmp_path / "m.gguf")
    refused: list[str] = []

    def try_open() -> None:
        with pytest.raises(ModelError, match=match) as caught:
            open_gguf(path)
        refused.append(str(caught.value))

    thread = threading.Thread(target=try_open, daemon=True)
    thread.start()
    thread.join(60)  # a FIFO that blocks would wait for ever
    assert refused


def test_g24_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_small(path)
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root reads everything, nobody does not
    try:
        with pytest.raises(ModelError, match="Permission denied"):
            open_gguf(path)
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("end", [1, 300, 1100], ids=lambda end: f"G19-cut-to-{end}")
def test_file_that_shrinks_while_open_gives_errors(end: int, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_small(path)
    with open_gguf(path) as model:
        names = list(model.metadata), model.metadata["general.architecture"]
        os.truncate(path, end)
        for touch in (model.check, lambda: model.raw("t0"), lambda: model.array("t3")):
            with pytest.raises(ModelError, match="as when it was opened"):
                touch()
        with pytest.raises(ModelError, match="got the end at"):
            model.read_into("t3", np.empty(256, np.uint8))
        with pytest.raises(ModelError, match="got the end at"):
            list(model.chunks("t3"))
        assert (list(model.metadata), model.metadata["general.architecture"]) == names


def test_g19_file_that_grows_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_small(path)
    with open_gguf(path) as model:
        with path.open("ab") as file:
            file.write(bytes(10_000))
        model.check()
        assert np.array_equal(model.array("t3").ravel(), HEX + 3)
    with open_gguf(path) as model:
        assert "10000 bytes after the last tensor" in model.warnings[0]


def test_g19_header_that_changes_after_opening_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {"words": ["one", "two", "three"], "numbers": [1, 2, 3]}, [])
    with open_gguf(path) as model:
        path.open("r+b").write(b"\xff" * path.stat().st_size)
        assert model.metadata["words"] == ["one", "two", "three"]
        assert model.metadata.get_array("numbers", kind="int").tolist() == [1, 2, 3]


def test_views_outlive_close_and_nothing_else_does(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_small(path)
    before = open_files()
    with open_gguf(path) as model:
        view = model.array("t1")
        assert not view.flags.writeable
    assert np.array_equal(view.ravel(), HEX + 1)
    with pytest.raises(ValueError, match="closed"):
        model.raw("t1")
    model.close()
    del view
    assert open_files() == before


def test_a_file_that_two_threads_close_is_closed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second time, its number may be that of a file which a third thread has opened meanwhile.
    path = tmp_path / "m.gguf"
    write_small(path)
    model, close, closed = open_gguf(path), os.close, list[int]()

    def meanwhile(descriptor: int) -> None:
        closed.append(descriptor)
        if len(closed) == 1:
            model.close()  # the other thread, which runs while the system closes the file
        close(descriptor)

    monkeypatch.setattr(opened, "os", SimpleNamespace(close=meanwhile))
    model.close()
    assert len(closed) == 1


def test_failed_open_leaves_no_file_open(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    before = open_files()
    for _ in range(20):
        with pytest.raises(ModelError):
            open_gguf(path)
    assert open_files() == before


@pytest.mark.parametrize("part", [0, 1, 3])
def test_any_part_opens_the_set(part: int, tmp_path: Path) -> None:
    paths = write_small(tmp_path / "m.gguf", max_size=256)
    assert [path.name for path in paths] == [f"m-0000{i}-of-00004.gguf" for i in (1, 2, 3, 4)]
    with open_gguf(paths[part]) as model:
        assert list(model.tensors) == ["t0", "t1", "t2", "t3"]
        assert [info.part for info in model.tensors.values()] == [0, 1, 2, 3]
        assert model.metadata["general.architecture"] == "none" and model.warnings == ()
        for i, name in enumerate(model.tensors):
            assert np.array_equal(model.array(name).ravel(), HEX + i)


def test_merged_set_equals_the_single_file(tmp_path: Path) -> None:
    (whole,) = write_small(tmp_path / "whole.gguf")
    first, *_ = write_small(tmp_path / "m.gguf", max_size=600)
    with open_gguf(first) as model:
        assert len(model.parts) == 2
        (merged,) = write_gguf(tmp_path / "merged.gguf", model.metadata, sources(model))
    assert merged.read_bytes() == whole.read_bytes()


def write_part(path: Path, names: str, keys: Keys) -> None:
    """A part with any keys; the writer reserves split.*, so those are renamed in the bytes."""
    values = {key.replace("split.", "xplit."): value for key, value in keys.items()}
    write_gguf(path, values, [TensorSource(name, (8,), "f32", HEX[:8]) for name in names])
    path.write_bytes(path.read_bytes().replace(b"xplit.", b"split."))


def keys(number: int | float | str, count: int | float | str, tensors: int = 2, **more: str) -> Keys:
    return {"split.no": number, "split.count": count, "split.tensors.count": tensors, **more}


ONE, OTHER = "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"
# id, {file name: (tensors, keys)}, the file that is opened, part of the error
SETS = [
    ("missing-part", {ONE: ("a", keys(0, 2))}, ONE, "00002-of-00002.gguf: can't be read: No such file"),
    ("missing-first", {OTHER: ("b", keys(1, 2))}, OTHER, "00001-of-00002.gguf: can't be read: No such file"),
    (
        "number-out-of-range",
        {ONE: ("a", keys(2, 2))},
        ONE,
        "split.no: expected an integer from 0 to 1, got 2",
    ),
    (
        "number-of-other-part",
        {ONE: ("a", keys(1, 2))},
        ONE,
        "name: expected one that ends in -00002-of-00002",
    ),
    (
        "number-twice",
        {ONE: ("a", keys(0, 2)), OTHER: ("b", keys(0, 2))},
        ONE,
        "split.no: expected .* 1 to 1, got 0",
    ),
    ("number-missing", {ONE: ("a", {"split.count": 2})}, ONE, "split.no: .*no such key"),
    ("count-0", {ONE: ("a", keys(0, 0))}, ONE, "split.count: expected an integer from 1 to 9999, got 0"),
    ("count-65535", {ONE: ("a", keys(0, 65535))}, ONE, "split.count: expected .*got 65535"),
    ("count-as-string", {ONE: ("a", keys(0, "2"))}, ONE, "split.count: expected an integer.*got string"),
    ("count-as-float", {ONE: ("a", keys(0, 2.0))}, ONE, "split.count: expected an integer.*got float32"),
    (
        "counts-differ",
        {ONE: ("a", keys(0, 2)), OTHER: ("b", keys(1, 3))},
        ONE,
        "split.count: .*2 to 2, got 3",
    ),
    (
        "name-without-number",
        {"m.gguf": ("a", keys(0, 2))},
        "m.gguf",
        "name: expected one that ends in -00001-of",
    ),
    (
        "tensor-twice",
        {ONE: ("ab", keys(0, 2, 3)), OTHER: ("b", keys(1, 2, 3))},
        ONE,
        "tensor b: expected in one part",
    ),
    (
        "tensors-missing",
        {ONE: ("a", keys(0, 2, 9)), OTHER: ("b", keys(1, 2, 9))},
        ONE,
        "tensors.count: expected 2",
    ),
    (
        "other-model",
        {ONE: ("a", keys(0, 2, arch="x")), OTHER: ("b", keys(1, 2, arch="y"))},
        OTHER,
        "arch: expected the value of .*00001-of-00002.gguf, got another",
    ),
    (
        "key-of-part-2",
        {ONE: ("a", keys(0, 2)), OTHER: ("b", keys(1, 2, arch="y"))},
        ONE,
        "arch: expected no key",
    ),
    ("no-part", {ONE: ("a", keys(0, 2)), OTHER: ("b", {})}, ONE, "split.count: .*no such key"),
]


@pytest.mark.parametrize(
    ("files", "opened", "match"), [pytest.param(*case[1:], id=f"G22-{case[0]}") for case in SETS]
)
def test_bad_set_is_refused(
    files: dict[str, tuple[str, Keys]],
    opened: str,
    match: str,
    tmp_path: Path,
) -> None:
    for name, (tensors, values) in files.items():
        write_part(tmp_path / name, tensors, values)
    with pytest.raises(ModelError, match=match):
        open_gguf(tmp_path / opened)


def test_g22_names_in_the_file_lead_nowhere(tmp_path: Path) -> None:
    """Paths of parts are derived from the given path, also through "..", never from the file's content."""
    inner = tmp_path / "inner"
    inner.mkdir()
    lure = {"general.url": "../../../../etc/passwd", "split.file": "../evil-00002-of-00002.gguf"}
    write_part(tmp_path / ONE, "a", {**keys(0, 2), **lure})
    write_part(tmp_path / OTHER, "b", keys(1, 2))
    with open_gguf(inner / ".." / OTHER) as model:
        assert [part.path for part in model.parts] == [inner / ".." / ONE, inner / ".." / OTHER]


def test_part_by_name_alone_is_read_with_a_warning(tmp_path: Path) -> None:
    write_part(tmp_path / ONE, "a", {})
    with open_gguf(tmp_path / ONE) as model:
        assert list(model.tensors) == ["a"]
        assert "knows no set" in model.warnings[0]
