"""`satchel plan` on several devices: the placement as a table and as JSON; an impossible one is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_file

from satchel.cli.commands.plan import show_predicted, spans
from satchel.cli.main import main
from satchel.runtime.device.libraries import libraries

HAVE = {f.name for f in libraries() if not f.reason}
pytestmark = pytest.mark.skipif(not {"cpu", "remote"} <= HAVE, reason="needs the cpu and the remote backend")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file.write_model(tmp_path_factory.mktemp("plan") / "tiny.gguf")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("satchel.runtime.placement.speeds.cache_file", lambda: tmp_path / "speeds.json")


def facts(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    assert main(["plan", *map(str, args), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_layers_by_device(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, model, "-dev", "remote", "-ngl", "2", "-ot", r"blk\.2\.ffn_down=cpu", "-nkvo")
    placed = found["placement"]
    assert placed["layers"] == ["cpu", "remote", "remote"] and placed["output"] == placed["embed"] == "cpu"
    assert placed["tensors"] == {"blk.2.ffn_down.weight": "cpu"}
    assert {placed["states"][f"{kind}.{i}"] for kind in "kv" for i in range(3)} == {"cpu"}
    kept = {d["device"]: d["kv_bytes"] for d in found["devices"]}
    assert kept["remote"] == 0 < kept["cpu"] and found["fits"] and not found["streamed"]
    assert found["predicted"]["pp512"] > 0 and found["predicted"]["tg128"] > 0
    assert main(["plan", str(model), "-dev", "remote", "-ngl", "2"]) == 0
    said = capsys.readouterr().out
    assert "cpu: layers 0, the head, the embeddings" in said and "remote: layers 1-2" in said
    assert "predicted: " in said


def test_a_large_speed_is_a_whole_number(capsys: pytest.CaptureFixture[str]) -> None:
    show_predicted({"predicted": {"pp512": 11880.4, "tg128": 664.81}})
    said = capsys.readouterr().out
    assert said == "predicted: 11,880 t/s of a prompt (pp512), 664.8 t/s of an answer (tg128)\n"


def test_all_on_one_device(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (device,) = facts(capsys, model, "-dev", "remote")["devices"]
    assert device["device"] == "remote" and device["fits"]


def test_a_budget_is_what_is_free(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, model, "-dev", "remote", "--gpu-memory", "1.8MB")
    free = {d["device"]: d["free_bytes"] for d in found["devices"]}
    assert free["remote"] == 1_800_000 < free["cpu"] and found["fits"]
    assert 0 < found["placement"]["layers"].count("remote") < 3


def test_the_type_that_would_fit_is_named(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("satchel.runtime.placement.dryrun.free_bytes", lambda *_: 2_500_000)
    assert main(["plan", str(model), "--stream-weights", "off"]) == 0
    found = capsys.readouterr().err
    assert "does not fit" in found and "would fit: `satchel quantize`" in found


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["-ngl", "-3"], 2),
        (["-dev", "cpu,,"], 2),
        (["-ot", "blk"], 2),
        (["-ot", "(=cpu"], 2),
        (["--gpu-memory", "lots"], 2),
        (["--stream-weights", "often"], 2),
        (["-dev", "remote,tpu"], 1),
        (["-dev", "remote", "-ngl", "all", "--gpu-memory", "1MB"], 1),
        (["-dev", "remote", "-ot", "ffn=abacus"], 1),
    ],
)
def test_what_cannot_be(model: Path, args: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(model), *args]) == code
    found = capsys.readouterr()
    assert found.out == "" and found.err.startswith("satchel: error: ") and found.err.count("\n") == 1


def test_layers_for_a_gpu_that_is_not_there_are_a_note(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(model), "-ngl", "7"]) == 0
    found = capsys.readouterr()
    assert found.out and "note: -ngl 7 has no effect: this machine has no GPU" in found.err


def test_numbers_as_ranges() -> None:
    assert spans([]) == "" and spans([4]) == "4" and spans([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
