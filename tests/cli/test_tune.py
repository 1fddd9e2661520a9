"""`satchel tune`: what it prints, stores, shows and deletes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from satchel.cli.main import main
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


@pytest.mark.model
def test_a_device_of_one_kernel_a_step_has_nothing_to_tune(
    bundled_model: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["tune", "-m", str(bundled_model), "--device", "cpu", "--tokens", "1", "--depth", "0"]
    assert main([*asked, "--repeats", "1"]) == 0
    assert "there is nothing to tune" in capsys.readouterr().err
    assert not file.exists()
