"""The wheel of programs for `satchel bundle`: the command finds each program in it, and inspection finds
faults. Where it was built, each target is bundled; this machine's chats, and so do those that qemu and wine
run, where they are installed.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import installed
import pytest
from waiting import SECONDS

from satchel import Model
from satchel.cli.bundles import stubs as command
from satchel.cli.main import main
from satchel.runtime.aot.records import HAL_HASH

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packaging"))
import check  # noqa: E402
import stubs  # noqa: E402

BUILT = Path(os.environ.get("SATCHEL_STUBS") or ROOT / "dist")
RUNNERS = {"aarch64-linux": "qemu-aarch64-static", "x86_64-windows": "wine"}  # what runs others' programs
MACHINES = {
    "linux": (command.MACHINES, lambda n: b"\x7fELF\x02\x01" + bytes(12) + struct.pack("<H", n) + bytes(60)),
    "macos": (command.MACHO_MACHINES, lambda n: b"\xcf\xfa\xed\xfe" + struct.pack("<I", n) + bytes(40)),
    "windows": (
        command.PE_MACHINES,
        lambda n: b"MZ" + bytes(58) + struct.pack("<I", 64) + b"PE\0\0" + struct.pack("<H", n) + bytes(200),
    ),
}


def stand_in(folder: Path, target: str) -> Path:
    """A file with the head of a target's program, and the mark and version of every program."""
    processor, _, system = target.partition("-")
    numbers, head = MACHINES[system]
    (number,) = (n for n, name in numbers.items() if name == processor)
    folder.mkdir(parents=True)
    path = folder / (stubs.PROGRAM + ".exe" * (system == "windows"))
    path.write_bytes(head(number) + stubs.MARK + struct.pack("<Q", HAL_HASH))
    return path


def test_the_command_and_the_wheel_have_the_same_names() -> None:
    assert tuple(stubs.TARGETS) == command.TARGETS
    assert (stubs.PACKAGE, stubs.PROGRAM, stubs.MARK) == (command.PACKAGE, command.PROGRAM, command.MARK)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return stubs.wheel(tmp_path, {t: stand_in(tmp_path / t, t) for t in stubs.TARGETS})


def test_the_command_finds_each_program_of_an_installed_wheel(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, stubs.PACKAGE, raising=False)
    for target in stubs.TARGETS:
        assert command.find_stub(target, None).target == target


def test_inspection_finds_what_is_wrong(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "program", lambda content, target: iter(()))  # stand-ins have heads alone
    assert list(check.inside(check.opened(wheel))) == []
    paths = {t: stand_in(tmp_path / "other" / t, t) for t in list(stubs.TARGETS)[1:]}
    paths["aarch64-linux"].write_bytes(b"\0/there/main.c\0")
    found = "\n".join(check.inside(check.opened(stubs.wheel(tmp_path, paths))))
    assert "no program for x86_64-linux" in found
    assert "one that `satchel bundle` does not know" in found
    assert "aarch64-linux/satchel-program: has a path of the machine that built it: /there/main.c" in found


@pytest.fixture(scope="module")
def built() -> Path:
    found = sorted(BUILT.glob("satchel_stubs-*.whl"))
    if not found:
        pytest.skip(f"{BUILT}: no wheel of programs: python packaging/stubs.py")
    return found[-1]


def test_the_wheel_is_what_its_name_says(built: Path) -> None:
    pytest.importorskip("lief", reason="the package lief is not installed")
    assert list(check.inside(check.opened(built))) == []


@pytest.mark.model
def test_a_program_of_the_wheel_answers_as_the_engine(
    built: Path,
    bundled_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, _ = installed.bundled_app(tmp_path_factory, bundled_model)
    with zipfile.ZipFile(built) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    for target in stubs.TARGETS:
        assert main(["bundle", str(app), "-o", str(tmp_path / target), "--target", target]) == 0
    messages = [{"role": "user", "content": "Hello! Who are you?"}]
    with Model.load(bundled_model, context=512, device="cpu") as model:
        wanted = model.chat(messages, temperature=0, max_tokens=64).read()
    words = ["--greedy", "--prompt", messages[0]["content"]]
    assert installed.ran([tmp_path / command.here(), *words], {}).rstrip("\n") == wanted
    for target, runner in RUNNERS.items():
        if target != command.here() and shutil.which(runner):
            program = next(tmp_path.glob(f"{target}*"))
            assert said_by([runner, str(program), *words], tmp_path) == wanted, target


def said_by(command: list[str], folder: Path) -> str:
    """What a program says. Into a file, for services of wine outlive it and keep a pipe open."""
    env = os.environ | {"WINEDEBUG": "-all", "WINEPREFIX": str(folder / "wine")}
    with (folder / "said").open("wb") as out:
        subprocess.run(command, env=env, stdout=out, stderr=subprocess.DEVNULL, timeout=SECONDS, check=True)
    return (folder / "said").read_text(encoding="utf-8").rstrip("\n")
