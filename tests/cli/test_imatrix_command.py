"""`satchel imatrix`: a tiny model and a text give importance data in either format; usage errors are one
line.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_file

from satchel.cli.main import main
from satchel.cli.progress import Tenths
from satchel.formats.imatrix import Origin, open_importance
from satchel.runtime.device.libraries import libraries

HAVE = {f.name for f in libraries() if not f.reason}
pytestmark = pytest.mark.skipif("cpu" not in HAVE, reason="the CPU backend is not built")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("imatrix")
    tiny_file.write_model(found / "m.gguf", "qwen3", "f32")
    (found / "t.txt").write_text("the quick brown fox jumps over the lazy dog. " * 20)
    return found


def run(folder: Path, *extra: str) -> int:
    return main(["imatrix", "-m", str(folder / "m.gguf"), "-f", str(folder / "t.txt"), "-c", "32", *extra])


@pytest.mark.parametrize(
    ("extra", "products"),
    [((), True), (("--no-hessian",), False), (("--hessian-memory", "0"), False)],
)
def test_gguf(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: tuple[str, ...], products: bool
) -> None:
    out = tmp_path / "i.gguf"
    assert run(folder, "-o", str(out), "--chunks", "2", *extra) == 0
    said = capsys.readouterr()
    assert said.out == "" and "2/2 windows" in said.err and str(out) in said.err
    assert ("--hessian-memory" in said.err) == (extra[:1] == ("--hessian-memory",))
    with open_importance(out) as found:
        assert found.origin == Origin(("t.txt",), 2, 32)
        assert found.has_products is products
        assert found.diagonal("blk.0.attn_q.weight") is not None


def test_dat(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "i.dat"
    assert run(folder, "-o", str(out), "--chunks", "1", "--output-format", "dat") == 0
    with open_importance(out) as found:
        assert found.origin == Origin(("t.txt",), 1, 0) and not found.has_products


def test_what_is_gathered_quantizes(folder: Path, tmp_path: Path) -> None:
    data, small = tmp_path / "i.gguf", tmp_path / "small.gguf"
    assert run(folder, "-o", str(data)) == 0
    files = [str(folder / "m.gguf"), str(small)]
    assert main(["quantize", "--imatrix", str(data), *files, "Q4_K_M"]) == 0
    assert small.stat().st_size < (folder / "m.gguf").stat().st_size / 4


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--chunks", "0"], 1, "windows"),
        (["-c", "100000"], 1, "tokens"),
        (["-o", "/no/such/folder/i.gguf", "--chunks", "1"], 1, "can't be written"),
        (["--output-format", "csv"], 2, "gguf"),
    ],
)
def test_wrong_use(
    folder: Path, capsys: pytest.CaptureFixture[str], args: list[str], code: int, said: str
) -> None:
    assert run(folder, *args) == code
    assert said in capsys.readouterr().err


def test_no_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["imatrix", "-m", str(folder / "m.gguf")]) == 2
    assert "-f" in capsys.readouterr().err


def test_a_run_that_is_cut_leaves_no_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: object, done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Tenths, "left", stop)
    out = tmp_path / "i.gguf"
    assert run(folder, "-o", str(out)) == 130
    assert list(tmp_path.iterdir()) == []
