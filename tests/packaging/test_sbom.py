"""packaging/sbom.py: bills of materials that CycloneDX's own schema takes."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cyclonedx", reason="cyclonedx-python-lib is not installed")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packaging"))
import sbom  # noqa: E402

from satchel.cli import version  # noqa: E402

if shutil.which("git") is None or not (ROOT / ".git").exists():
    pytest.skip("this is no checkout of git, whose files a bill lists", allow_module_level=True)


A_FEW = ("LICENSE", "cext/include", "cli/main.py")  # of the 1,200 files, which take seconds


def both() -> dict[str, bytes]:
    return sbom.of_program([sbom.Tool("zig", "0.17.1")], epoch=0) | sbom.of_model("1.0.0", 0)


@pytest.fixture(scope="module")
def bills() -> dict[str, bytes]:
    """Both wheels' bills, by name; the program's with a few of its files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sbom, "PARTS", A_FEW)
        return both()


@pytest.fixture(scope="module")
def program(bills: dict[str, bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bills["sboms/satchel.cdx.json"])
    return found


def test_the_schema_takes_them(bills: dict[str, bytes]) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert [*bills] == ["sboms/satchel.cdx.json", "sboms/satchel_model_40m.cdx.json"]
    for content in bills.values():
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(content.decode()) is None


def test_the_same_commit_gives_the_same_bytes(
    bills: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sbom, "PARTS", A_FEW)
    assert both() == bills


@pytest.mark.nightly
def test_the_schema_takes_the_bill_of_every_file() -> None:
    test_the_schema_takes_them(both())


def test_sources_have_their_hashes(program: dict[str, Any]) -> None:
    files = {one["name"]: one for one in program["components"] if one["type"] == "file"}
    assert files.keys() == {path.relative_to(ROOT).as_posix() for path in sbom.tracked(A_FEW)}
    for name in ("cli/main.py", "cext/include/hal.h"):
        (digest,) = files[name]["hashes"]
        assert digest == {"alg": "SHA-256", "content": hashlib.sha256((ROOT / name).read_bytes()).hexdigest()}


def test_it_lists_what_a_wheel_is_made_of() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in sbom.tracked(sbom.PARTS)}
    assert {"cli/main.py", "cext/include/hal.h", "store/store.py", "LICENSE"} < found
    assert not [name for name in found if name.startswith(("tests/", "docs/", "models/", "bench/"))]
    vendored = {"vendor", "_vendor", "vendored", "third_party", "thirdparty", "extern", "external"}
    assert not [name for name in found if vendored & set(Path(name).parts)]


def test_the_compiler_is_named_and_not_shipped(
    program: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (compiler,) = [one for one in program["components"] if one["type"] == "application"]
    assert (compiler["name"], compiler["version"], compiler["scope"]) == ("zig", "0.17.1", "excluded")
    monkeypatch.setattr(sbom, "PARTS", A_FEW)
    assert "application" not in {
        one["type"] for one in json.loads(next(iter(sbom.of_program([], 0).values())))["components"]
    }


def test_what_it_needs_is_what_pyproject_says(program: dict[str, Any]) -> None:
    needs = {
        row["value"]
        for one in program["components"]
        for row in one.get("properties", [])
        if row["name"] == "satchel:requires"
    }
    assert needs == set(sbom.project()["dependencies"])


def test_nothing_is_vendored(program: dict[str, Any]) -> None:
    assert {"name": "satchel:vendored", "value": "nothing"} in program["metadata"]["properties"]


def test_the_models_licence_is_its_own(bills: dict[str, bytes], program: dict[str, Any]) -> None:
    model = json.loads(bills["sboms/satchel_model_40m.cdx.json"])

    def licence(bill: dict[str, Any]) -> str:
        return str(bill["metadata"]["component"]["licenses"][0]["license"]["id"])

    assert (licence(model), licence(program)) == ("CC-BY-SA-4.0", "MIT")
    assert model["metadata"]["component"]["type"] == "machine-learning-model"
    readme = (ROOT / "models" / "README.md").read_text(encoding="utf-8")
    assert "CC BY-SA 4.0" in readme
    assert "satchel:commit" not in str(model) and model["metadata"]["component"]["version"] == "1.0.0"
    assert {"models/SOURCES.md", "models/README.md"} < {one["name"] for one in model["components"]}


def test_the_program_finds_its_commit_there(bills: dict[str, bytes]) -> None:
    text = bills["sboms/satchel.cdx.json"].decode()
    assert version._of_sbom(text) == sbom.commit() and version.SBOM in bills
