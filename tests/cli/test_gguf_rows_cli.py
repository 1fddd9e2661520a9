"""Every malformed file of the G rows through the commands that open one."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from satchel.cli.main import main


def rows() -> ModuleType:
    """tests/formats/gguf/test_gguf_rows.py, which builds the files."""
    path = Path(__file__).parents[1] / "formats" / "gguf" / "test_gguf_rows.py"
    spec = importlib.util.spec_from_file_location("gguf_rows", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ROWS = rows()
BAD = ROWS.BAD
SOME = BAD[::7]  # the library's tests cover all; a sample suffices for the commands
COMMANDS = {
    ("inspect",): BAD,
    ("run", "hello", "-m"): BAD,
    ("hash",): SOME,
    ("edit", "--set", "a=1"): SOME,
    ("merge",): SOME,
}
CASES = [
    pytest.param(command, case[1], id=f"{command[0]}-{case[0]}")
    for command, cases in COMMANDS.items()
    for case in cases
]


@pytest.mark.parametrize(("command", "raw"), CASES)
def test_a_malformed_file_is_one_line_and_1(
    command: tuple[str, ...], raw: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, content = tmp_path / "bad.gguf", ROWS.made(raw)
    path.write_bytes(content)
    target = [str(tmp_path / "out.gguf")] if command[0] == "merge" else []
    code = main([*command, str(path), *target])
    out, err = capfd.readouterr()
    assert (code, out) == (1, "") and len(err.strip().splitlines()) == 1, err
    assert err.startswith("satchel: error: ") and err.isascii()
    assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("raw", [pytest.param(case[1], id=case[0]) for case in SOME])
def test_verify_has_findings_and_says_nothing_else(
    raw: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(ROWS.made(raw))
    assert main(["verify", str(path)]) == 1
    out, err = capfd.readouterr()
    assert out.startswith("error: container: ") and err == "" and out.replace("\n", "").isprintable()
