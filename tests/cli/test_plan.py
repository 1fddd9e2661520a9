"""`satchel plan`: sizes equal the loaded model's, without reading a weight; --check names wrong steps."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_file

from satchel.cli.main import main
from satchel.formats.gguf import open_gguf
from satchel.runtime import ops
from satchel.runtime.api.model import Model
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.graph import Array, Type
from satchel.runtime.ops import OPS
from satchel.runtime.placement.dryrun import dry_run, scratch
from satchel.runtime.weights.packing import packed_by

HAVE = {f.name for f in libraries() if not f.reason}
pytestmark = pytest.mark.skipif("cpu" not in HAVE, reason="no CPU backend is installed")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file.write_model(tmp_path_factory.mktemp("plan") / "tiny.gguf")


def facts(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    assert main(["plan", *map(str, args), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(("context", "slots", "kind"), [(0, 1, "f16"), (64, 3, "f16"), (50, 2, "f32")])
def test_sizes(model: Path, context: int, slots: int, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, model, "-c", context, "-np", slots, "-ctk", kind, "-ctv", kind)
    (device,) = found["devices"]
    with open_gguf(model) as gguf, find_backend("cpu").open() as opened:
        types = {n: Type(t.shape, t.format) for n, t in gguf.tensors.items() if len(t.shape) == 2}
        packed = packed_by(opened, types)
        stay = sum(t.nbytes for n, t in gguf.tensors.items() if n not in packed)
    assert device["packed_bytes"] == sum(p.size for p in packed.values()) > 0
    assert device["weights_bytes"] == device["packed_bytes"] + stay
    width = {"f16": 2, "f32": 4}[kind]
    blocks = -(-(context or tiny.CONTEXT) // 32) * slots
    assert device["kv_bytes"] == blocks * 32 * tiny.LAYERS * 2 * tiny.KV_HEADS * tiny.HEAD_DIM * width
    parts = ("weights_bytes", "kv_bytes", "compute_bytes")
    assert device["total_bytes"] == sum(device[p] for p in parts) and device["fits"] and found["fits"]
    assert found["context"] == (context or tiny.CONTEXT) and found["slots"] == slots


@pytest.mark.parametrize("backend", [name for name in ("cpu", "remote") if name in HAVE])
def test_the_plan_is_the_engine_s(model: Path, backend: str) -> None:
    """Equals the loaded model's plan step for step and byte for byte."""
    with open_gguf(model) as gguf, find_backend(backend).open() as device:
        planned = dry_run(gguf, [device]).plan(5)
        expected = list(planned.listing())
        own = scratch(planned)
    with Model.load(model, device=backend) as loaded:
        loaded.engine.step([BatchEntry(0, [1, 2, 3, 4, 5])])
        made = loaded.engine.program(5, 1).plan
        assert list(made.listing()) == expected
        assert scratch(made) == own
        assert [s.view_table.tobytes() for s in made.segments] == [
            s.view_table.tobytes() for s in planned.segments
        ]


def test_without_repacking_weights_stay_in_the_file(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (device,) = facts(capsys, model, "--no-repack")["devices"]
    with open_gguf(model) as gguf:
        assert device["weights_bytes"] == sum(t.nbytes for t in gguf.tensors.values())
    assert device["packed_bytes"] == 0
    assert main(["plan", str(model)]) == main(["plan", str(model), "--no-repack"]) == 0
    assert capsys.readouterr().out.count("in its own order") == 1


def test_no_weight_is_read(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from satchel.formats.gguf import GGUF

    def touched(*_: object) -> None:
        raise AssertionError("a tensor was read")

    for name in ("raw", "array", "read_into", "chunks"):
        monkeypatch.setattr(GGUF, name, touched)
    assert facts(capsys, model, "--steps", "--passes")["steps"]


def test_steps_and_passes(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, model, "--steps", "--bucket", "7", "--passes")
    assert found["bucket"] == {"tokens": 8, "rows": 1}
    assert found["passes"][0]["name"] == "build" and found["passes"][-1]["name"] == "place"
    assert all(p["nodes"] > 0 for p in found["passes"])
    assert sum("attention(" in line for line in found["steps"]) == tiny.LAYERS
    assert main(["plan", str(model), "--steps", "--passes"]) == 0
    text = capsys.readouterr().out
    assert "token_embd.weight:q8_0" in text and "fuse" in text


def test_what_does_not_fit_is_said(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(model), "-c", "100000000", "-np", "64"]) == 0
    found = capsys.readouterr()
    assert "no" in found.out.splitlines()[-1].split() and "does not fit" in found.err


def test_check(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(model), "--check", "hello you"]) == 0
    assert "steps are within their bounds" in capsys.readouterr().out

    @wraps(ops.attention.define)
    def nothing(q: Array, *_: Array, **__: object) -> Array:
        return np.zeros((len(q), tiny.WIDTH), np.float32)

    monkeypatch.setitem(OPS, "attention", replace(ops.attention, define=nothing))
    assert main(["plan", str(model), "--check", "hello you"]) == 1
    assert "blk.0: attention on cpu" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["no such file"], 1),
        (["-dev", "tpu"], 1),
        (["-m", "x.gguf"], 2),
        (["--bucket", "0"], 2),
        (["-np", "0"], 2),
    ],
)
def test_what_cannot_be(model: Path, args: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    given = args if args[0] == "no such file" else [str(model), *args]
    assert main(["plan", *given]) == code
    found = capsys.readouterr()
    assert found.out == "" and found.err.startswith("satchel: error: ") and found.err.count("\n") == 1
