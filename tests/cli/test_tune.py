"""`satchel tune`: what it prints, stores, shows and deletes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_file import write_model

from satchel.cli.main import main
from satchel.runtime.device.device import Device
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.tuning import Tuned, place, read, remember


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SATCHEL_TUNING", str(tmp_path / "tuning.json"))
    return tmp_path / "tuning.json"


def test_what_is_remembered_is_shown_and_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--show"]) == 0
    assert "nothing is tuned" in capsys.readouterr().err
    steps = {"linear f32:1x8 < ...": Tuned("a+b@4", "c", 1.25, 2.5), "add": Tuned("d", "d", 3, 3)}
    with find_backend("cpu" if any(f.name == "cpu" for f in libraries()) else "numba").open() as device:
        made = remember(device, steps, "2026-01-02")
    assert main(["tune", "--show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(f", 2026-01-02, tuning {made.name}")
    assert any(
        line.split() == ["linear", "f32:1x8", "<", "...", "a+b@4", "1.2", "c", "2.5"] for line in lines
    )
    assert main(["tune", "--show", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out).values()
    assert found["name"] == made.name and found["steps"]["add"]["kernel"] == "d"
    for text in ("all tuning is forgotten", "there was no tuning"):
        assert main(["tune", "--forget"]) == 0
        assert text in capsys.readouterr().err
    assert read() == {}


@pytest.mark.parametrize(
    "wrong",
    [["--tokens", "a"], ["--tokens", "0"], ["--tokens", "1,99999999"], ["--depth", "-1"], ["--repeats", "0"]],
)
def test_wrong_use(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *wrong]) == 2
    assert wrong[0] in capsys.readouterr().err
    assert main(["tune", "--show", "--forget"]) == 2


def test_a_broken_file_is_named_and_can_be_forgotten(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("no tuning")
    assert main(["tune", "--show"]) == 1
    assert "tuning.json: cannot read the tuning" in capsys.readouterr().err
    assert main(["tune", "--forget"]) == 0 and place() == file and not file.exists()


def test_on_a_cpu_it_says_that_there_is_nothing_to_tune_before_it_opens_a_model(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["tune", "-m", str(tmp_path / "none.gguf"), "--device", "cpu"]
    assert main(asked) == 0
    assert "cpu: it has one kernel for each step: there is nothing to tune" in capsys.readouterr().err
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"cpu": []}
    assert not file.exists()


def test_progress_is_told_for_each_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU's table is read as if the device had choices, so that all of a tuning runs here."""
    monkeypatch.setattr(Device, "has_choices", True)
    monkeypatch.setattr(Device, "kernels", lambda self, segment, step: ("only",))
    path = write_model(tmp_path / "tiny.gguf")
    sizes = ["--tokens", "1,2", "--depth", "0,4", "--repeats", "1"]
    assert main(["tune", "-m", str(path), "--device", "cpu", *sizes]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines[:4]] == [
        "satchel: cpu: 1/4 steps of 1 tokens behind 4",
        "satchel: cpu: 2/4 steps of 2 tokens behind 0",
        "satchel: cpu: 3/4 steps of 2 tokens behind 4",
        "satchel: cpu: 4/4 ",
    ]
