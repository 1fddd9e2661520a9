"""A program that PyInstaller freezes runs a model from another folder, without numba."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import distribution, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace

import httpx
import pytest
from packages import PACKAGES
from serving_process import children
from tiny_file import write_model
from waiting import SECONDS, ready

from satchel.cli.freezing import hook_folders
from satchel.cli.main import commands, main
from satchel.errors import DeviceError, RequestError
from satchel.formats.gguf import open_gguf
from satchel.runtime import children as processes

COMMANDS = """
import sys
from satchel.cli.main import main

code = main()
if sys.argv[1] == "quantize":
    print("numba" in sys.modules)
sys.exit(code)
"""
# What the tests' environment has, and a program would bring along; `satchel convert` reads with it.
LARGE = ("torch", "transformers", "scipy", "onnx", "matplotlib", "openai", "anthropic", "ollama", "llama_cpp")
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
    command[3:3] = [f"--exclude-module={name}" for name in LARGE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return out / "app"


def moved(folder: Path, elsewhere: Path) -> Path:
    """The frozen program in another folder."""
    shutil.move(folder, elsewhere / "moved" / "app")
    return elsewhere / "moved" / "app" / "app"


def alone() -> dict[str, str]:
    """An environment without a Python around the program."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SATCHEL"))}


def ran(program: Path, *args: object) -> list[str]:
    """The lines that the frozen program prints."""
    done = subprocess.run(
        [program, *map(str, args)],
        cwd=program.parent.parent,
        env=alone(),
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
    modules = ("satchel", "satchel.cli.main", "satchel.formats.quantize", "satchel.server")
    assert names == {f"hook-{module}.py" for module in modules}


def test_a_frozen_program_starts_no_worker_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """sys.executable is the program itself there: it would start itself without end."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(DeviceError, match="worker='thread'"):
        processes.interpreter()


def test_a_frozen_program_that_runs_code_starts_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(processes, "_programs", set())
    monkeypatch.setattr(sys, "argv", ["satchel", "--version"])
    assert main() == 0 and capsys.readouterr().out.startswith("satchel ")
    command = [*processes.interpreter(), "-c", "import sys; print(sys.argv, __name__)", "{}"]
    assert command[0] == sys.executable
    monkeypatch.setattr(sys, "argv", command)
    assert main() == 0 and capsys.readouterr().out == "['-c', '{}'] __main__\n"


def metadata(name: str) -> list[tuple[str, str]]:
    """As PyInstaller's copy_metadata: an error where the package is not installed."""
    return [(str(distribution(name).locate_file("")), name)]


def submodules(package: str) -> list[str]:
    """As PyInstaller's collect_submodules."""
    path = importlib.import_module(package).__path__
    return [package, *(found.name for found in pkgutil.walk_packages(path, f"{package}."))]


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Runs the hook of a module, with the functions of PyInstaller that it calls."""
    given = {"copy_metadata": metadata, "collect_submodules": submodules}
    utils = ModuleType("PyInstaller.utils.hooks")
    vars(utils).update(given, get_hook_config=lambda program, module, key: program.config.get(key))
    for name in ("PyInstaller", "PyInstaller.utils", utils.__name__):
        monkeypatch.setitem(sys.modules, name, utils)

    def run(module: str) -> ModuleType:
        spec = spec_from_file_location("a_hook", Path(hook_folders()[0]) / f"hook-{module}.py")
        assert spec is not None and spec.loader is not None
        made = module_from_spec(spec)
        spec.loader.exec_module(made)
        return made

    return run


def test_the_hooks_name_what_no_import_statement_does(hook: Callable[[str], ModuleType]) -> None:
    root, found = Path(__file__).parents[2], hook("satchel")
    for place in ("runtime/models", "formats/chat/families", "quant/formats"):
        package = f"satchel.{place.replace('/', '.')}"
        named = {f"{package}.{path.stem}" for path in (root / place).glob("[a-z]*.py")}
        assert named and named <= {*found.hiddenimports}
    compiled = any("libsatchel_cpu" in path for path, _ in found.binaries)
    assert compiled != ("numba" in found.hiddenimports)
    commanded, served, searched = map(
        hook, ("satchel.cli.main", "satchel.server", "satchel.formats.quantize")
    )
    assert {"satchel.cli.commands.run", "satchel.runtime.worker.child"} <= {*commanded.hiddenimports}
    assert {Path(path).stem for path, _ in commanded.datas} >= {"run", "serve"}
    assert "satchel.server.app" in served.hiddenimports
    assert bool(searched.binaries) != ("numba" in searched.hiddenimports)
    for made in (found, commanded, served, searched):
        brought = [*getattr(made, "datas", ()), *getattr(made, "binaries", ())]
        assert all(Path(path).exists() for path, _ in brought)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_program_leaves_the_bundled_model_out(
    hook: Callable[[str], ModuleType], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, datas = hook("satchel"), list[tuple[str, str]]()
    program = SimpleNamespace(config={"bundled_model": wanted}, add_datas=datas.extend)
    monkeypatch.setattr(found, "default_model", lambda: Path("model.gguf"))
    found.hook(program)
    assert datas == ([("model.gguf", "satchel/models")] if wanted else [])

    def none() -> Path:
        raise RequestError("the bundled model is not installed")

    monkeypatch.setattr(found, "default_model", none)
    datas.clear()
    found.hook(program)
    assert not datas


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the program's folder is laid out otherwise elsewhere")
def test_a_frozen_program_answers_from_another_folder(tmp_path: Path) -> None:
    folder = frozen(tmp_path, PROGRAM)
    assert not list(folder.rglob("*llvmlite*")) and not list(folder.rglob("numba"))
    assert list(folder.rglob("satchel-40m-*.gguf"))
    model = write_model(tmp_path / "tiny.gguf")
    counts, *said = ran(moved(folder, tmp_path), model)
    expected = [
        len(list((Path(__file__).parents[2] / place).glob("[a-z]*.py")))
        for place in ("runtime/models", "formats/chat/families", "quant/formats")
    ]
    assert [int(count) for count in counts.split()[:3]] == expected
    assert said[0] == "True" and said[1].startswith("<Model tiny.gguf: architecture qwen3")


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="the program's folder is laid out otherwise elsewhere")
def test_frozen_satchel_has_its_commands(tmp_path: Path) -> None:
    """They are listed, and those that start processes or compile do so."""
    folder, model, small = frozen(tmp_path, COMMANDS), write_model(tmp_path / "tiny.gguf"), tmp_path / "small"
    assert not list(folder.rglob("*llvmlite*")) and list(folder.rglob("satchel_search.so"))
    program = moved(folder, tmp_path)
    listed = "\n".join(ran(program, "--help-all"))
    assert all(f"\n  {name} " in listed for name in commands())
    assert ran(program, "run", "-m", model, "Hello", "-n", "3", "--json-mode", "--json")
    assert ran(program, "quantize", "--allow-requantize", model, small, "IQ4_NL")[-1] == "False"
    with open_gguf(small) as gguf:
        assert "iq4_nl" in {tensor.format for tensor in gguf.tensors.values()}
    answers(program, small)


def answers(program: Path, model: Path) -> None:
    """Serves the model, with the engine in a process of its own."""
    command = [program, "serve", "-m", model, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=alone()) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.search(r"http://\S+", line)
            assert found, line + process.stderr.read()
            ready(found[0])
            body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
            made = httpx.post(f"{found[0]}/v1/chat/completions", json=body, timeout=SECONDS)
            assert made.status_code == 200, made.text
            started = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(process.pid)]
            assert any(one.startswith(bytes(program) + b"\0--as-python\0") for one in started)
        finally:
            process.kill()
