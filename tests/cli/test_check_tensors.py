"""--check-tensors: a weight that is NaN or infinite is one line and exit code 1, before anything runs."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import tiny_file

from satchel.cli.main import main
from satchel.formats.gguf import open_gguf
from satchel.runtime.device.libraries import libraries

pytestmark = pytest.mark.skipif(
    "cpu" not in {f.name for f in libraries() if not f.reason}, reason="no CPU backend is installed"
)
DAMAGED = "blk.1.ffn_down.weight"
COMMANDS = {
    "run": ("run", "-n", "1", "--temp", "0", "hi", "-m"),
    "plan": ("plan", "-m"),
    "perplexity": ("perplexity", "-c", "8", "--chunks", "1", "-f", __file__, "-m"),
}


@pytest.fixture(autouse=True)
def nothing_on_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_file.write_model(tmp_path_factory.mktemp("checked") / "good.gguf")


@pytest.fixture(scope="module", params=[b"\x00\x7e", b"\x00\x7c"], ids=["nan", "infinity"])
def bad(request: pytest.FixtureRequest, good: Path) -> Path:
    """Makes the scale of the first block of row 2 of one Q8_0 tensor NaN or infinite."""
    data = bytearray(good.read_bytes())
    with open_gguf(good) as gguf:
        info = gguf.tensors[DAMAGED]
        assert info.format == "q8_0"
        at = info.offset + 2 * (info.nbytes // info.shape[0])
    data[at : at + 2] = request.param
    path = good.with_name("bad.gguf")
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("args", COMMANDS.values(), ids=COMMANDS)
def test_a_damaged_weight_is_named(
    bad: Path, args: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*args, str(bad), "--check-tensors"]) == 1
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("satchel: error: ") and f"{DAMAGED}: row 2 holds NaN or infinity" in err


@pytest.mark.parametrize("args", COMMANDS.values(), ids=COMMANDS)
def test_good_weights_pass(good: Path, args: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*args, str(good), "--check-tensors"]) == 0
    assert "NaN" not in capfd.readouterr().err
