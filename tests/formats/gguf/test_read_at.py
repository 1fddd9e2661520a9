"""Reading at an offset gives the same bytes with the system's call and without it, as on Windows."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tiny_file import write_model

from satchel.formats.gguf import open_gguf
from satchel.formats.gguf.read_at import read_at


@pytest.fixture(params=["preadv", "seek"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "preadv" and not hasattr(os, "preadv"):
        pytest.skip("this system has no preadv")
    if request.param == "seek":
        monkeypatch.delattr(os, "preadv", raising=False)


def test_the_bytes_of_an_offset(way: None, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    with path.open("rb", buffering=0) as file:
        out = bytearray(10)
        assert read_at(file.fileno(), memoryview(out), 95) == 5 and out == bytes(range(95, 100)) + bytes(5)
        assert read_at(file.fileno(), memoryview(out), 7) == 10 and out == bytes(range(7, 17))
        assert read_at(file.fileno(), memoryview(out), 100) == 0


def test_threads_read_one_descriptor(way: None, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"".join(number.to_bytes(4, "little") for number in range(2000)))
    with path.open("rb", buffering=0) as file, ThreadPoolExecutor(4) as pool:

        def number(at: int) -> int:
            out = bytearray(4)
            read_at(file.fileno(), memoryview(out), 4 * at)
            return int.from_bytes(out, "little")

        assert list(pool.map(number, range(2000))) == list(range(2000))


def test_a_model_is_read(way: None, tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf")
    with open_gguf(path) as gguf:
        name, info = next(iter(gguf.tensors.items()))
        out = bytearray(info.nbytes)
        gguf.parts[info.part].read_into(info.offset, memoryview(out))
        whole = path.read_bytes()
        assert out == whole[info.offset : info.offset + info.nbytes], name
