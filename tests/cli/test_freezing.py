"""A program that PyInstaller freezes runs a model from another folder, without numba where it does not
quantize.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from packages import PACKAGES
from tiny_file import write_model
from waiting import SECONDS

from satchel.cli.freezing import hook_folders
from satchel.errors import DeviceError
from satchel.runtime import children

QUANTIZES = """
import sys
from satchel.formats.gguf import open_gguf
from satchel.formats.quantize import find_recipe, quantize_file

quantize_file(sys.argv[1], sys.argv[2], find_recipe("IQ4_NL"), requantize=True)
with open_gguf(sys.argv[2]) as gguf:
    print("iq4_nl" in {tensor.format for tensor in gguf.tensors.values()}, "numba" in sys.modules)
"""
PROGRAM = """
import sys
from satchel import Choice, Model, __version__
from satchel.formats.chat.family import families
from satchel.quant import FORMATS
from satchel.runtime.layers.arch import architectures

print(len(architectures()), len(families()), len(FORMATS), __version__)
with Model.load(*sys.argv[1:]) as model:
    asked = [{"role": "user", "content": "Is it?"}]
    print(model.chat(asked, grammar=Choice(["yes", "no"])).read() in ("yes", "no"))
    print(model)
"""


def tree(folder: Path) -> Path:
    """A folder with the package as an install has it: PyInstaller finds no editable one."""
    root, package = Path(__file__).parents[2], folder / "satchel"
    for name in (*PACKAGES, "models"):
        shutil.copytree(root / name, package / name, ignore=shutil.ignore_patterns("__pycache__", "*.gguf"))
    shutil.copy(root / "runtime" / "package.py", package / "__init__.py")
    module = importlib.import_module("satchel.cext._hal")
    shutil.copy(str(module.__file__), package / "cext" / "_hal.py")
    return folder


def frozen(tmp_path: Path, program: str) -> Path:
    """The folder of the frozen program; skips where this Python cannot be frozen."""
    bindepend = pytest.importorskip("PyInstaller.depend.bindepend")
    try:
        bindepend.get_python_library_path()
    except SystemExit:  # the base class of PyInstaller's error
        pytest.skip("PyInstaller needs Python's shared library: apt-get install libpython3-dev")
    source, out = tmp_path / "app.py", tmp_path / "out"
    source.write_text(program)
    places = [f"--{kind}path={out / kind}" for kind in ("work", "spec")]
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level=WARN", *places]
    command += [f"--distpath={out}", f"--paths={tree(tmp_path / 'tree')}", str(source)]
    command[3:3] = [f"--additional-hooks-dir={folder}" for folder in hook_folders()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return out / "app"


def ran(folder: Path, elsewhere: Path, *args: object) -> list[str]:
    """The lines that the frozen program prints, moved to another folder and without a Python around it."""
    moved = elsewhere / "moved" / "app"
    shutil.move(folder, moved)
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SATCHEL"))}
    done = subprocess.run(
        [moved / "app", *map(str, args)],
        cwd=elsewhere,
        env=alone,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_entry_point_names_the_folder_of_the_hooks() -> None:
    (found,) = (e for e in entry_points(group="pyinstaller40") if e.value.startswith("satchel."))
    assert found.load() is hook_folders and found.name == "hook-dirs"
    names = {path.name for path in Path(hook_folders()[0]).glob("hook-*.py")}
    assert names == {"hook-satchel.py", "hook-satchel.formats.quantize.py", "hook-satchel.server.py"}


def test_a_frozen_program_starts_no_worker_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """sys.executable is the program itself there: it would start itself without end."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(DeviceError, match="worker='thread'"):
        children.interpreter()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the program's folder is laid out otherwise elsewhere")
def test_a_frozen_program_answers_from_another_folder(tmp_path: Path) -> None:
    folder = frozen(tmp_path, PROGRAM)
    assert not list(folder.rglob("*llvmlite*")) and not list(folder.rglob("numba"))
    assert list(folder.rglob("satchel-40m-*.gguf"))
    model = write_model(tmp_path / "tiny.gguf")
    counts, *said = ran(folder, tmp_path, model)
    expected = [
        len(list((Path(__file__).parents[2] / place).glob("[a-z]*.py")))
        for place in ("runtime/models", "formats/chat/families", "quant/formats")
    ]
    assert [int(count) for count in counts.split()[:3]] == expected
    assert said[0] == "True" and said[1].startswith("<Model tiny.gguf: architecture qwen3")


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="the program's folder is laid out otherwise elsewhere")
def test_a_frozen_program_quantizes_by_compiled_searches(tmp_path: Path) -> None:
    folder, model = frozen(tmp_path, QUANTIZES), write_model(tmp_path / "tiny.gguf")
    assert list(folder.rglob("*llvmlite*"))
    assert ran(folder, tmp_path, model, tmp_path / "small.gguf") == ["True True"]
