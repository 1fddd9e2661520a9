"""A18 of the hostile requests: the code that reads the weights verifies their digests at load."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
from tiny_file import write_model

from satchel import Model
from satchel.cli.main import main
from satchel.errors import ModelError, RequestError
from satchel.formats.gguf import open_gguf
from satchel.formats.gguf.digest import digest
from satchel.store.digests import digests_of


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A model, a copy with one flipped bit of a weight, and a manifest of the first."""
    folder = tmp_path_factory.mktemp("verified")
    good, bad = write_model(folder / "m.gguf"), folder / "bad" / "m.gguf"
    bad.parent.mkdir()
    shutil.copy(good, bad)
    with open_gguf(good) as gguf:
        manifest = folder / "digests"
        manifest.write_text("\n".join(digest(gguf).lines()))
        info = gguf.tensors["blk.0.ffn_up.weight"]
    with bad.open("r+b") as file:
        file.seek(info.offset + 100)
        byte = file.read(1)[0]
        file.seek(info.offset + 100)
        file.write(bytes([byte ^ 1]))
    return good, bad, manifest


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_a18_a_flipped_bit_is_found_before_anything_is_answered(
    files: tuple[Path, Path, Path], worker: str
) -> None:
    good, bad, manifest = files
    digests = digests_of(good, str(manifest))
    with Model.load(good, digests=digests, worker=worker) as model:
        assert model.generate([1, 2], max_tokens=1, ignore_eos=True).read() is not None
    with pytest.raises(ModelError, match=r"tensor blk\.0\.ffn_up\.weight: expected \w{64}, got .*download"):
        Model.load(bad, digests=digests, worker=worker)


def test_a18_lists_of_sums_and_a_model_that_nobody_pinned(
    files: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad, _ = files
    with open_gguf(good) as gguf:
        sums = tmp_path / "SHA256SUMS"
        sums.write_text(f"{'0' * 64}  another.gguf\n{digest(gguf).files['m.gguf']}  m.gguf\n")
    Model.load(good, digests=digests_of(good, str(sums))).close()
    with pytest.raises(ModelError, match=r"file m\.gguf: expected"):
        Model.load(bad, digests=digests_of(bad, str(sums)))
    monkeypatch.setenv("SATCHEL_MODELS", str(tmp_path / "store"))
    with pytest.raises(RequestError, match="the store has no digest of it"):
        digests_of(good, "store")
    with pytest.raises(RequestError, match="can't be read"):
        digests_of(good, str(tmp_path / "none"))


def test_a18_the_command_line_verifies(
    files: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad, manifest = files
    for path, code in ((good, 0), (bad, 1)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
        command = ["run", "-m", str(path), "-p", "hi", "-n", "1", "--verify-weights", str(manifest)]
        assert (main(command) == 0) == (code == 0)
        told = capsys.readouterr().err
        assert ("the file is damaged" in told) == bool(code)
