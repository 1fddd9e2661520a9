"""`satchel doctor` prints what works and how to repair the rest; it fails where no model can run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from satchel.cli.commands import doctor
from satchel.cli.completing.candidates import candidates
from satchel.cli.main import main
from satchel.errors import DeviceError
from satchel.quant.native.library import SearchLibrary
from satchel.runtime.compiler.target import DeviceTarget
from satchel.runtime.device.device import BackendLibrary
from satchel.runtime.device.libraries import TEST_BACKENDS, find_backend, libraries, offered
from satchel.runtime.device.selftest import cache_types
from satchel.runtime.graph import Node
from satchel.runtime.plan import ONE, Bucket
from satchel.runtime.sandbox.enter import lacking

FOLDERS = os.environ.get("SATCHEL_BACKENDS", "")  # of the test backends


@pytest.fixture(autouse=True)
def _no_chosen_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SATCHEL_BACKENDS", raising=False)


def checks(capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, dict[str, Any]]:
    """Each check by its name."""
    assert main(["doctor", "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["usable"] is (code == 0)
    assert "Python" in found["system"]["satchel"]
    return {check["name"]: check for check in found["checks"]}


def test_numba_computes_right(capsys: pytest.CaptureFixture[str]) -> None:
    found = checks(capsys)
    assert found["numba"]["result"] == "PASS"
    assert found["cpu"]["result"] in ("PASS", "FAIL")
    assert not TEST_BACKENDS & {*found}
    assert all(check["mend"] for check in found.values() if check["result"] == "FAIL")
    wanted = "NONE" if lacking() else "PASS"
    for name in ("sandbox", "open", "write", "socket", "exec", "fork"):
        assert found[name]["kind"] == "sandbox" and found[name]["result"] in (wanted, "PASS"), name


def test_test_backends_are_hidden_unless_a_folder_of_the_variable_has_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = [
        BackendLibrary(name, str(tmp_path / f"libsatchel_{name}.so"), "", 1)
        for name in ("cpu", "toy", *TEST_BACKENDS)
    ]
    monkeypatch.setattr("satchel.runtime.device.libraries.libraries", lambda: tuple(found))
    monkeypatch.delenv("SATCHEL_BACKENDS", raising=False)
    assert [one.name for one in offered()] == ["cpu", "toy"]
    assert [c.word for c in candidates(["satchel", "run", "-dev", ""])] == ["auto", "cpu", "toy"]
    with pytest.raises(DeviceError, match=r"no such backend is installed; there is cpu, numba, toy$"):
        find_backend("nonsense")
    monkeypatch.setenv("SATCHEL_BACKENDS", os.pathsep.join(["/nowhere", str(tmp_path.resolve())]))
    assert list(offered()) == found


def test_a_chosen_test_backend_is_tested(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    null = next((Path(f.path) for f in libraries() if f.name == "null"), None)
    if null is None:
        pytest.skip("no compiled backend is installed")
    monkeypatch.setenv("SATCHEL_BACKENDS", str(null.parent))
    assert checks(capsys)["null"]["result"] == "TEST"


def test_a_test_backend_computes_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_BACKENDS", FOLDERS)
    try:
        backend = find_backend("remote")
    except DeviceError as error:
        pytest.skip(str(error))
    found = doctor.computed("remote", backend, "")
    assert found.result == "TEST" and found.text.startswith("computes right ("), found.text


def test_cache_types_are_those_that_the_device_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checks(capsys)["numba"]["text"].endswith("; cache types f16, bf16, f32, q8_0, fp8, q4_0")
    known = DeviceTarget.refusal

    def refusal(target: DeviceTarget, node: Node, bucket: Bucket = ONE) -> str:
        if node.op == "hadamard" or any(s.type.format == "bf16" for s in node.src):
            return "not that one"
        return known(target, node, bucket)

    with find_backend("numba").open() as device:
        monkeypatch.setattr(DeviceTarget, "refusal", refusal)
        assert cache_types(device) == ("f16", "f32")


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("PASS  numba") and "computes right" in line for line in lines)


def test_no_compiler_at_install(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("satchel.runtime.device.libraries.libraries", lambda: ())
    found = checks(capsys)["cpu"]
    assert found["result"] == "FAIL"
    assert "no C compiler" in found["text"]
    assert "apt-get install -y gcc && " in found["mend"]


def test_nothing_can_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BackendLibrary("cpu", "/x/cext/libsatchel_cpu.so", "built for another version", 0)
    monkeypatch.setattr("satchel.runtime.device.libraries.libraries", lambda: (broken,))
    monkeypatch.setattr(
        "satchel.runtime.device.libraries._numba", lambda: BackendLibrary("numba", "numba", "it is gone", 0)
    )
    found = checks(capsys, code=1)
    assert {n: found[n]["result"] for n in ("cpu", "numba")} == {"cpu": "FAIL", "numba": "FAIL"}
    assert "--force-reinstall" in found["cpu"]["mend"]
    assert "-m pip install --upgrade 'satchel[slow]'" in found["numba"]["mend"]


def test_numba_may_be_absent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if not any(f.name == "cpu" and not f.reason for f in libraries()):
        pytest.skip("no compiled CPU backend is installed")
    monkeypatch.setattr("satchel.runtime.device.libraries.numba_installed", lambda: False)
    found = checks(capsys)["numba"]
    assert (found["result"], found["mend"]) == ("NONE", "")
    with pytest.raises(DeviceError, match="there is cpu"):
        find_backend("nonsense")


def test_what_the_quantizer_searches_with(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = SearchLibrary("", "it was not built")
    for found, result in (("C, avx2", "PASS"), ("numba", "PASS"), ("numpy, slowly", "FAIL")):
        library = SearchLibrary("avx2") if found[0] == "C" else absent
        monkeypatch.setattr("satchel.quant.native.library.search_library", lambda library=library: library)
        monkeypatch.setattr("satchel.quant.native.compiled.means", lambda found=found: found)
        check = doctor.searches()
        assert check.result == result and check.text.startswith(f"searches in {found}")
        assert ("satchel[slow]" in check.mend) is (result == "FAIL")


def test_a_backend_that_computes_wrong_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("satchel.runtime.device.selftest.BOUND", 0.0)
    found = checks(capsys, code=1)["numba"]
    assert found["result"] == "FAIL"
    assert "computes wrong" in found["text"]


def test_a_broken_drop_in_is_named(tmp_path: Path) -> None:
    (tmp_path / "libsatchel_toy.so").write_text("no library")
    environment = {**os.environ, "SATCHEL_BACKENDS": str(tmp_path)}
    command = [sys.executable, "-m", "satchel", "doctor", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    toy = next(c for c in json.loads(done.stdout)["checks"] if c["name"] == "toy")
    assert (toy["result"], toy["mend"]) == ("FAIL", "unset SATCHEL_BACKENDS")
    assert "libsatchel_toy.so" in toy["text"]


def test_the_command_that_installs_anew_names_where_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    class Distribution:
        def read_text(self, name: str) -> str:
            return '{"url": "file:///a%20b/satchel", "dir_info": {"editable": true}}'

    monkeypatch.setattr("satchel.cli.commands.doctor.metadata.distribution", lambda name: Distribution())
    assert doctor.reinstall().endswith("install --force-reinstall --no-deps -e '/a b/satchel'")
