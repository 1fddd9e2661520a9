"""`satchel build`: the file stays the GGUF that it was, undo gives it back bit for bit, every build is the
same, and what it cannot build it says in one line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cffi
import gguf as reference
import numpy as np
import pytest
from tiny_file import write_model

from satchel import Model
from satchel.cext import dtype_of
from satchel.errors import ModelError, RequestError
from satchel.formats.gguf import open_gguf
from satchel.runtime.aot import records
from satchel.runtime.aot.build import build, undo
from satchel.runtime.aot.compiled import compile_model
from satchel.runtime.aot.plan_section import CacheSize, _check, _distinct, plan_tables
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.layers.arch import Cache

ROOT = Path(__file__).parents[3]


def built(path: Path, target: Path, **options: Any) -> Path:
    with open_gguf(path) as gguf:
        build(gguf, target, **options)
    return target


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("aot") / "m.gguf")


@pytest.fixture(scope="module")
def app(model: Path) -> Path:
    return built(model, model.with_name("app.gguf"))


def test_undo_gives_the_file_back(model: Path, app: Path, tmp_path: Path) -> None:
    raw = model.read_bytes()
    version_2 = tmp_path / "two.gguf"  # with bytes behind its tensors, which `satchel merge` would leave out
    version_2.write_bytes(raw[:4] + b"\2\0\0\0" + raw[8:] + b"behind")
    for path in (model, version_2):
        made = built(path, tmp_path / "app.gguf")
        with open_gguf(made) as gguf:
            undo(gguf, tmp_path / "back.gguf")
        assert (tmp_path / "back.gguf").read_bytes() == path.read_bytes()
    again = built(app, tmp_path / "again.gguf")  # a built file is built anew
    assert again.read_bytes() == app.read_bytes()


def test_builds_are_equal(model: Path, app: Path, tmp_path: Path) -> None:
    assert built(model, tmp_path / "other.gguf").read_bytes() == app.read_bytes()
    assert built(model, tmp_path / "other.gguf", context=64, slots=3).read_bytes() != app.read_bytes()


def test_others_read_the_file_as_before(model: Path, app: Path) -> None:
    before, after = reference.GGUFReader(model), reference.GGUFReader(app)
    assert [t.name for t in after.tensors] == [t.name for t in before.tensors]
    for one, other in zip(before.tensors, after.tensors, strict=True):
        assert np.array_equal(one.data, other.data)
    added = set(after.fields) - set(before.fields)
    assert added == set(records.KEYS)
    for key in before.fields.keys() - {"GGUF.kv_count"}:
        assert str(after.fields[key].contents()) == str(before.fields[key].contents())
    with Model.load(model, context=64) as one, Model.load(app, context=64) as other:
        assert (
            one.generate("hello", seed=1, max_tokens=9).read()
            == other.generate("hello", seed=1, max_tokens=9).read()
        )


@pytest.mark.parametrize(
    "arch", ["gemma2", "gemma3", "granitehybrid", "qwen35", "deepseek2", "llama4", "gpt_oss"]
)
def test_relocated_plans_are_the_compilers(arch: str, tmp_path: Path) -> None:
    """At sizes that the build did not compare itself."""
    keys = {f"{arch}__attention__sliding_window": 20} if arch.startswith("gemma") else {}
    path = write_model(tmp_path / "m.gguf", arch, **keys)
    with open_gguf(path) as gguf, find_backend("cpu").open(threads=1) as device:
        tables, whole, least = plan_tables(gguf, device)
        seen = set(_distinct(whole.arch.context, least, whole))
        for size in (CacheSize(least, 11), CacheSize(95, 2), CacheSize(65, 1)):
            assert size not in seen
            cache = Cache(size.context, size.slots, batch=whole.cache.batch)
            _check(tables, compile_model(gguf, device, cache, tuple(whole.plans)))


def test_what_cannot_be_built_says_so(model: Path, app: Path, tmp_path: Path) -> None:
    target = tmp_path / "app.gguf"
    with open_gguf(model) as gguf:
        with pytest.raises(RequestError, match="--context: expected 1 to 96 for this model, got 97"):
            build(gguf, target, context=97)
        with pytest.raises(RequestError, match="--slots: expected 1 to 64, got 65"):
            build(gguf, target, slots=65)
        with pytest.raises(RequestError, match=r"holds no satchel\.plan: there is nothing to undo"):
            undo(gguf, target)
        with pytest.raises(RequestError, match="expected another file than the one that is read"):
            build(gguf, model)
    silent = write_model(tmp_path / "silent.gguf", tokenizer__ggml__model="none")
    with open_gguf(silent) as gguf, pytest.raises(ModelError, match="the file holds no tokenizer"):
        build(gguf, target)
    assert not target.exists()


def test_c_declares_the_same_tables() -> None:
    """The structs of sections.h have the fields of records.py, at the same places."""
    text = (ROOT / "cext" / "embed" / "sections.h").read_text()
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    view = dtype_of("hal_view")
    ffi = cffi.FFI()
    hal = (ROOT / "cext" / "include" / "hal.h").read_text()
    ffi.cdef(hal[hal.index("/* ==== tables */") : hal.index("enum { HAL_NAME")])
    ffi.cdef(text)
    names = [
        name
        for name in vars(records)
        if name.startswith(("PLAN_", "TOKENIZER_", "TEMPLATE_", "GRAMMAR_"))
        and not name.endswith(("KEY", "PREFIX"))
    ]
    assert len(names) == 28
    for name in names:
        wanted = getattr(records, name)
        renamed = {
            "tokenizer_code": "pattern_code",
            "tokenizer_class": "pattern_class",
            "tokenizer_range": "pattern_range",
        }
        struct = ffi.typeof(renamed.get(name.lower(), name.lower()))
        assert wanted.itemsize == ffi.sizeof(struct), name
        places = {field: wanted.fields[field][1] for field in wanted.names}
        assert places == {field: kind.offset for field, kind in struct.fields}, name
    assert records.PLAN_VIEW.fields["view"][0] == view
