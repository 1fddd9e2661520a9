"""`satchel build --panels`: weights as the CPU's kernels read them, in the file: every format goes there and
back bit for bit, the C library gives the same tokens, and others are told what the file is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import embedded
import gguf as reference
import numpy as np
import pytest
from embedded import Driver, DriverError
from tiny_file import write_model

from satchel import Model
from satchel.errors import ModelError, RequestError
from satchel.formats.gguf import open_gguf
from satchel.quant import FORMATS
from satchel.runtime.aot import panels
from satchel.runtime.aot.build import build, undo
from satchel.runtime.aot.records import PANELS_KEY
from satchel.runtime.device.device import Device
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.sampling import GREEDY


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with find_backend("cpu").open(threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("panels") / "m.gguf", "qwen3moe")


def built(path: Path, target: Path) -> Path:
    with open_gguf(path) as gguf:
        build(gguf, target, panels=True)
    return target


def test_every_format_is_unpacked_as_it_was(device: Device) -> None:
    rng, seen = np.random.default_rng(0), 0
    for one in FORMATS.values():
        columns = 3 * panels.Matrices(one.id, 1, 1, 0).unit[0]
        what = panels.Matrices(one.id, 1, 37, columns)
        if not device.packed(one.id, 1, 37, columns):
            continue
        raw = rng.integers(0, 256, what.nbytes, np.uint8)
        packed = panels.pack(device, what, raw.tobytes())
        assert np.array_equal(panels.Unpacker(device, one.id).unpack(what, packed).reshape(-1), raw), one.name
        seen += 1
    assert seen > 20


@pytest.mark.parametrize("format", ["q8_0", "q5_1", "bf16"])
def test_undo_gives_the_file_back(format: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "qwen3moe", format)
    raw = path.read_bytes()
    path.write_bytes(raw[:4] + b"\2\0\0\0" + raw[8:] + b"behind")  # bytes behind the tensors, version 2
    app = built(path, tmp_path / "app.gguf")
    with open_gguf(app) as gguf:
        assert gguf.tensors[PANELS_KEY].offset % 64 == 0
        assert "blk.0.attn_q.weight" not in gguf.tensors
        undo(gguf, tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == path.read_bytes()


def test_matrices_in_parts_are_the_same(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = built(model, tmp_path / "whole.gguf").read_bytes()
    monkeypatch.setattr(panels, "AT_ONCE", 1 << 12)
    assert built(model, tmp_path / "parts.gguf").read_bytes() == whole
    with open_gguf(tmp_path / "parts.gguf") as gguf:
        undo(gguf, tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == model.read_bytes()


@pytest.mark.parametrize("arch", ["qwen3", "qwen3moe", "gemma2"])
def test_the_tokens_are_those_of_the_engine(
    arch: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write_model(tmp_path / "m.gguf", arch)
    app, ids = built(path, tmp_path / "app.gguf"), [int(i) for i in range(3, 60, 2)]
    with Model.load(path, context=90, slots=1, device="cpu", threads=1) as model:
        fed, wanted = ids, []
        for _ in range(12):
            (token,) = model.engine.step([BatchEntry(0, fed, GREEDY)])
            wanted.append(token)
            fed = [token]
    with Driver(embedded.driver_program(tmp_path_factory)) as driver:
        driver.open(app, 90, 1)
        driver.begin(0, ids, {"temperature": 0, "flags": 1})
        assert driver.next(0, 12)[0] == wanted


def test_others_see_no_model(model: Path, tmp_path: Path) -> None:
    app = built(model, tmp_path / "app.gguf")
    names = [t.name for t in reference.GGUFReader(app).tensors]
    assert names[0] == PANELS_KEY
    with open_gguf(app) as gguf, pytest.raises(RequestError, match="has panels: take them away first"):
        build(gguf, tmp_path / "again.gguf")
    with pytest.raises(ModelError, match="its weights are panels, which libsatchel alone reads"):
        Model.load(app)


def test_what_is_damaged_is_refused(
    model: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    raw = built(model, tmp_path / "app.gguf").read_bytes()
    at = raw.index(b"SATPAN01")
    (tmp_path / "damaged.gguf").write_bytes(raw[: at + 40] + bytes([raw[at + 40] ^ 1]) + raw[at + 41 :])
    with open_gguf(tmp_path / "damaged.gguf") as gguf, pytest.raises(ModelError, match="is damaged"):
        undo(gguf, tmp_path / "back.gguf")
    with Driver(embedded.driver_program(tmp_path_factory)) as driver:
        with pytest.raises(DriverError, match="it was built for other metadata"):
            driver.open(tmp_path / "damaged.gguf", 0, 1)
        (tmp_path / "cut.gguf").write_bytes(raw[:-100])
        with pytest.raises(DriverError, match="within the file's"):
            driver.open(tmp_path / "cut.gguf", 0, 1)
