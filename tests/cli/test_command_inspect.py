"""`satchel inspect`: complete JSON, and tables through which a file can't control the terminal."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from satchel.cli.commands.inspect import inspect
from satchel.errors import ModelError
from satchel.formats.gguf import StringArray, TensorSource, write_gguf


def write_model(path: Path) -> Path:
    values: dict[str, Any] = {
        "general.architecture": "none",
        "evil": "\x1b[2J[bold]x[/bold]\nnext",
        "nan": math.nan,
        "words": StringArray.of([*map(str, range(100))]),
        "broken": StringArray.of([b"\xff\xfe"]),
        "long": "y" * 5000,
        "floats": np.array([1.5, math.inf], np.float32),
    }
    tensors = [
        TensorSource("a.weight", (4, 64), "q8_0", bytes(272)),
        TensorSource("b", (3,), "f32", bytes(12)),
    ]
    write_gguf(path, values, tensors)
    return path


def test_json_says_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(write_model(tmp_path / "m.gguf"), as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["version"], found["alignment"]) == (3, 32)
    metadata = found["metadata"]
    assert metadata["evil"] == {"type": "string", "value": "\x1b[2J[bold]x[/bold]\nnext"}
    assert metadata["nan"]["value"] == "nan" and metadata["floats"]["value"] == [1.5, "inf"]
    assert metadata["words"] == {"type": "array of string", "length": 100, "value": [*map(str, range(8))]}
    assert metadata["long"]["value"] == "y" * 5000
    assert found["tensors"][0]["shape"] == [4, 64] and found["tensors"][0]["nbytes"] == 272
    totals = found["totals"]
    assert (totals["tensors"], totals["elements"], totals["bytes"]) == (2, 259, 284)
    assert totals["formats"]["q8_0"] == {"tensors": 1, "elements": 256, "bytes": 272}


@pytest.mark.parametrize("tensors", [True, False])
def test_tables_hold_every_name_and_no_control_character(
    tensors: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inspect(write_model(tmp_path / "m.gguf"), tensors=tensors)
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    assert "[bold]x[/bold]\\nnext" in out and "\\x1b[2J" in out
    assert ("a.weight" in out) == tensors
    assert "(5000 characters)" in out and "y" * 500 not in out


def test_warnings_go_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_model(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes() + bytes(1000))
    inspect(path)
    captured = capsys.readouterr()
    assert "after the last tensor" in captured.err and "after the last tensor" not in captured.out


def test_malformed_file_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelError):
        inspect(path)
    assert capsys.readouterr().out == ""
