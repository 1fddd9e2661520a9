"""Tests of bench/quality.py: the files that it writes and scores, without the peer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import quality
import tiny_file

from satchel.formats.gguf import open_gguf
from satchel.quant import FORMATS


def test_decoded_files_hold_the_same_numbers(tmp_path: Path) -> None:
    path, wide = tiny_file.write_model(tmp_path / "m.gguf", "qwen3", "q4_k"), tmp_path / "wide.gguf"
    quality.decode_file(path, wide)
    with open_gguf(path) as given, open_gguf(wide) as found:
        assert list(found.tensors) == list(given.tensors)
        assert {info.format for info in found.tensors.values()} == {"f32"}
        for name, info in given.tensors.items():
            want = FORMATS[info.format].decode(given.array(name))
            np.testing.assert_array_equal(found.array(name), want)


def test_our_file_takes_the_formats_of_the_other(tmp_path: Path) -> None:
    source = tiny_file.write_model(tmp_path / "m.gguf", "qwen3", "f32")
    other = tiny_file.write_model(tmp_path / "o.gguf", "qwen3", "q5_k", seed=1)
    quality.by_satchel(source, tmp_path / "ours.gguf", "Q5_K_M", None, other)
    with open_gguf(other) as theirs, open_gguf(tmp_path / "ours.gguf") as ours:
        assert {n: i.format for n, i in ours.tensors.items()} == {
            n: i.format for n, i in theirs.tensors.items()
        }
        assert ours.metadata["general.file_type"] == 17


def test_the_table_has_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    pair = [
        quality.Result("Q4_K_M", who, 10, 1.0, kld, 0.01, 0.9, 5.0) for who, kld in (("a", 0.4), ("b", 0.1))
    ]
    quality.show(pair)
    assert "0.250" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    "args", [[], ["-e", "x"], ["-e", "x", "-f", "y", "--plain"], ["-e", "x", "--plain", "--types", "Q9"]]
)
def test_wrong_use(args: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["quality.py", *args])
    with pytest.raises(SystemExit) as stop:
        quality.main()
    assert stop.value.code == 2
