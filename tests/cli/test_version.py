"""`satchel --version --json`: what this Satchel was made of, and what it can compute with."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from satchel.cli import version
from satchel.cli.main import main
from satchel.runtime.device.libraries import kernel_sets, library_files

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_the_program_prints_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["version"] == metadata.version("satchel") and found["python"] == platform.python_version()
    for library in found["libraries"]:
        assert Path(library["file"]).exists() and library["usable"] == (not library["reason"])
    processors = [library for library in found["libraries"] if library["backend"] == "cpu"]
    for one in processors:
        assert one["devices"] == 1 and one["set"] in one["sets"]


def test_other_words_after_it_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version", "--jsn"]) == 2
    assert "--version: expected nothing or --json after it, got '--jsn'" in capsys.readouterr().err


def test_a_wrong_set_is_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_CPU", "abacus")
    processors = [library for library in version.facts()["libraries"] if library["backend"] == "cpu"]
    if not processors:
        pytest.skip("no library of the processor was built")
    sets = " ".join(processors[0]["sets"])
    assert not processors[0]["usable"] and sets in processors[0]["reason"]


def test_sets_are_read_from_a_file_of_any_system(tmp_path: Path) -> None:
    file = tmp_path / "satchel_cpu.dll"
    file.write_bytes(b"MZ\0\0sets of this library: neon dotprod i8mm\0more")
    assert kernel_sets(file) == ("neon", "dotprod", "i8mm")
    for content in (b"", b"nothing of it", b"sets of this library: cut off"):
        file.write_bytes(content)
        assert kernel_sets(file) == ()
    assert kernel_sets(tmp_path / "absent") == ()
    assert all(kernel_sets(path) for path in library_files() if path.stem == "libsatchel_cpu")


class Installed:
    """A distribution with these files."""

    def __init__(self, files: dict[str, Any]) -> None:
        self.files = files

    def read_text(self, name: str) -> str | None:
        return json.dumps(self.files[name]) if name in self.files else None


ORIGIN, SBOM = "direct_url.json", "sboms/satchel.cdx.json"
BILL = {"metadata": {"properties": [{"name": "satchel:vendored", "value": "nothing"}]}}
STATED = {"metadata": {"properties": [{"name": version.COMMIT, "value": COMMIT}]}}


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, None),
        ({ORIGIN: {"vcs_info": {"vcs": "git", "commit_id": COMMIT}}}, COMMIT),
        ({SBOM: STATED}, COMMIT),
        ({SBOM: BILL}, None),
        ({ORIGIN: {"dir_info": {"editable": True}, "url": "file:///no/such/folder"}}, None),
    ],
)
def test_where_the_commit_is_known_from(
    files: dict[str, Any], wanted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(files))
    assert version.commit() == wanted
