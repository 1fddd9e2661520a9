"""A model file that is swapped or rewritten while it is in use is noticed by the open file's time stamps,
which every write changes, not by samples of its bytes.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from tiny_file import write_model
from waiting import until

from satchel import Model
from satchel.errors import ModelError
from satchel.formats.gguf import open_gguf
from satchel.runtime.api.model import WorkerModel
from satchel.runtime.api.options import Options
from satchel.runtime.kv import identity as identities
from satchel.runtime.kv.identity import identity, starts
from satchel.runtime.worker.service import WorkerService


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.gguf")


def flip(path: Path) -> None:
    """Flips one bit of a weight, and restores the modification time."""
    with open_gguf(path) as gguf:
        info = gguf.tensors["blk.0.ffn_up.weight"]
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(info.offset + info.nbytes // 3)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap(path: Path) -> None:
    """Replaces the file by a copy with other weights of the same size and time."""
    before, other = path.stat(), path.with_name("other")
    shutil.copy(path, other)
    flip(other)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


@pytest.mark.skipif(os.name == "nt", reason="an open file cannot be replaced there")
def test_a_worker_that_is_begun_again_must_find_the_file_that_was_loaded(path: Path) -> None:
    model = Model.load(path, threads=1, worker="process")
    assert isinstance(model, WorkerModel)
    with model:
        flip(path)
        os.kill(model.worker.pid, signal.SIGKILL)
        with pytest.raises(ModelError, match=r"process was lost, and the file was changed: it may be"):
            model.generate([1, 2, 3], max_tokens=2).read()
        until(lambda: "was changed" in model.trouble, "the trouble")


def test_the_program_and_its_worker_open_the_same_file(path: Path) -> None:
    """What lies between the two opens is what the other process finds at this path."""
    with open_gguf(path) as gguf:
        stamps = gguf.stamps
    swap(path)
    worker = WorkerService(path, Options(threads=1, slots=1), stamps=stamps)
    with pytest.raises(ModelError, match=r"m\.gguf: the file was changed"):
        worker.begin(None)
    worker.close()


def test_a_file_that_is_written_while_it_is_loaded_is_refused(path: Path) -> None:
    changed: list[int] = []

    def progress(done: int, total: int) -> None:
        if not changed:
            flip(path)
            changed.append(done)

    with pytest.raises(ModelError, match=r"m\.gguf: expected the file as when it was opened"):
        Model.load(path, threads=1, progress=progress)
    Model.load(path, threads=1).close()


def test_stamps_are_of_the_open_file(path: Path) -> None:
    with open_gguf(path) as gguf:
        assert not gguf.parts[0].changed
        gguf.check_unchanged()
        with open_gguf(path) as again:
            assert again.stamps == gguf.stamps
        flip(path)
        assert gguf.parts[0].changed
    assert not gguf.parts[0].changed, "a closed one is nobody's"


def test_identity_sees_every_byte_of_a_small_model_and_samples_a_large_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(path: Path) -> str:
        with open_gguf(path) as gguf:
            return identity(gguf)

    before = of(path)
    assert of(path) == before
    flip(path)
    assert of(path) != before
    reads: list[int] = []
    with open_gguf(path) as gguf:
        total = sum(info.nbytes for info in gguf.tensors.values())
        monkeypatch.setattr(identities, "BUDGET", total // 2)
        monkeypatch.setattr(identities, "PIECE", 64)
        read = gguf.parts[0].read_into

        def counted(offset: int, out: memoryview) -> None:
            reads.append(len(out))
            read(offset, out)

        monkeypatch.setattr(gguf.parts[0], "read_into", counted)
        identity(gguf)
    assert total // 3 < sum(reads) < total * 2 // 3 and max(reads) == 64


def test_pieces_begin_and_end_with_the_tensor() -> None:
    assert starts(10, 4, 0) == [0, 3, 6]
    assert starts(10, 10, 1) == [0] and starts(3, 4, 7) == [0] and starts(0, 4, 3) == []
    assert starts(100, 10, 4) == [0, 30, 60, 90]
