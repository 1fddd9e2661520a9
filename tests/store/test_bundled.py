"""Where the bundled model is: in the project's folder, else in a package of its own, else nowhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from satchel.cli.commands import doctor
from satchel.errors import RequestError
from satchel.store import bundled
from satchel.store.resolve import default_model


def package(name: str) -> Path:
    """The folder of a new package, whose name bundled.HOMES has."""
    folder = Path(sys.path[0]) / name
    folder.mkdir()
    (folder / "__init__.py").touch()
    return folder


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Names of two packages that are not there yet. A module stays imported: each test has other names."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = (f"first_of_{tmp_path.name}", f"second_of_{tmp_path.name}")
    monkeypatch.setattr(bundled, "HOMES", names)
    return names


def test_the_projects_folder_comes_first() -> None:
    first, second = bundled.HOMES
    assert first == "satchel.models" and second == bundled.PACKAGE.replace("-", "_")


def test_the_package_has_it_where_the_program_has_none(homes: tuple[str, str]) -> None:
    file = package(homes[1]) / "satchel-40m-q6_k.gguf"
    file.write_bytes(b"GGUF")
    assert default_model() == file


def test_a_folder_without_a_model_is_passed_over(homes: tuple[str, str]) -> None:
    first, second = package(homes[0]), package(homes[1]) / "satchel-40m-q6_k.gguf"
    second.write_bytes(b"GGUF")
    assert default_model() == second
    (first / second.name).write_bytes(b"GGUF")
    assert default_model() == first / second.name


def test_the_missing_package_is_named(homes: tuple[str, str]) -> None:
    assert bundled.bundled_file() is None and list(bundled.in_bundle()) == []
    with pytest.raises(
        RequestError, match="not installed: run `pip install satchel-model-40m`, or give a file"
    ):
        default_model()
    (check,) = doctor.model()
    assert check.result == doctor.FAIL and check.mend.endswith(" -m pip install satchel-model-40m")
