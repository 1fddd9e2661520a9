"""A02: nothing in the current folder is run: no module, program or settings, neither by this process nor by
one that it starts.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from packages import PACKAGES
from waiting import ready

from satchel.runtime import children

ROOT = Path(__file__).parents[3]
SATCHEL = Path(sys.executable).with_name("satchel")
# Modules that an interpreter, Satchel or one of its libraries imports, and hooks of Python's start.
MODULES = (
    "json", "typing", "ctypes", "re", "struct", "threading", "logging", "socket", "sitecustomize",
    "usercustomize", "numpy", "numba", "llvmlite", "cffi", "tokenizers", "jinja2", "typer", "fastapi",
    "uvicorn", "yaml", "uvloop", "httptools", "orjson", "readline", "pyreadline",
)  # fmt: skip
MARK = "import os; open({!r}, 'a').write(__name__ + ' '); raise SystemExit(77)\n"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="programs here are shell scripts")


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, full of modules and programs that record in `ran` when they run."""
    folder, ran = tmp_path / "trap", tmp_path / "ran"
    folder.mkdir()
    for name in MODULES:
        (folder / f"{name}.py").write_text(MARK.format(str(ran)))
    for name in ("encodings", "satchel", "importlib"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(MARK.format(str(ran)))
    for name in ("cc", "gcc", "uname", "ldconfig", "nano", "editor", "python", "python3"):
        (folder / name).write_text(f"#!/bin/sh\necho {name} >> {ran}\nexit 77\n")
        (folder / name).chmod(0o755)
    (folder / ".numba_config.yaml").write_text(f"cache_dir: {folder}\ndebug_cache: 1\n")
    monkeypatch.chdir(folder)
    yield folder
    assert not ran.exists(), f"from the current folder ran: {ran.read_text()}"


def ask(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, **environment}
    return subprocess.run(words, env=given, capture_output=True, text=True, timeout=120, check=False)


def test_a_worker_and_its_program(trap: Path) -> None:
    """Where PATH leads to the current folder too."""
    words = ("run", "--worker", "process", "-n", "2", "--temp", "0", "Hello!")
    done = ask(sys.executable, str(SATCHEL), *words, PATH=f":.:{os.environ['PATH']}:")
    assert (done.returncode, bool(done.stdout.strip())) == (0, True), done.stderr


def test_a_server(trap: Path) -> None:
    command = [sys.executable, str(SATCHEL), "serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            line = next((found for found in server.stderr if "listens on" in found), "")
            ready(line.split()[3])
        finally:
            server.send_signal(signal.SIGTERM)
            server.stderr.read()
    assert server.returncode in (0, -signal.SIGTERM)


def test_as_a_module(trap: Path) -> None:
    """`python -m` itself looks for these two in the current folder, before any of our code."""
    for name in ("satchel", "importlib"):
        (trap / name / "__init__.py").unlink()
        (trap / name).rmdir()
    if ask(sys.executable, "-m", "__hello__").returncode:  # a module that imports nothing
        (trap.parent / "ran").unlink()
        pytest.skip("this Python's own -m imports modules of the current folder (3.12: threading)")
    for words in (["-m", "satchel"], ["-msatchel"], ["-Bm", "satchel"], ["-X", "utf8", "-m", "satchel"]):
        done = ask(sys.executable, *words, "--version")
        assert done.stdout.startswith("satchel ") and done.returncode == 0, done.stderr
    assert ask(sys.executable, "-m", "satchel.cext").returncode == 0


def test_another_program_keeps_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("import satchel, sys\n")
    (tmp_path / "mine" / "__main__.py").write_text("import mine, other; print(other.__name__)\n")
    (tmp_path / "other.py").write_text("")
    command = [sys.executable, "-m", "mine", "-m", "satchel"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "other", done.stderr


@pytest.mark.nightly
def test_the_doctor(trap: Path) -> None:
    done = ask(sys.executable, str(SATCHEL), "doctor", "--json", PATH=f":.:{os.environ['PATH']}")
    assert json.loads(done.stdout)["usable"], done.stderr


LOADING = """
import sys
from satchel.quant.native.numba_import import import_numba
numba = import_numba()
assert numba.config.CACHE_DIR == "" and not numba.config.DEBUG_CACHE, numba.config.CACHE_DIR
numba.core.config.reload_config()
assert numba.config.CACHE_DIR == ""
import yaml
assert yaml.safe_load("a: 1") == {"a": 1}
"""


@pytest.mark.parametrize("first", ["", pytest.param("import yaml\n", marks=pytest.mark.nightly)])
def test_settings_of_numba(trap: Path, first: str) -> None:
    """The file could name a folder of compiled code, which would be unpickled."""
    pytest.importorskip("yaml", reason="without it numba reads no settings")
    (trap / "yaml.py").unlink()
    done = ask(sys.executable, "-P", "-W", "error::UserWarning", "-c", first + LOADING)
    assert done.returncode == 0, done.stderr


def test_a_kernels_compiler(trap: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither cc of the current folder, nor what a relative entry of the compiler's own lists leads to."""
    from satchel.errors import DeviceError
    from satchel.runtime.kernels.native import compile_c, compiler

    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", f":.{os.pathsep}")
    with pytest.raises(DeviceError, match="'cc' is not installed"):
        compiler()
    monkeypatch.setenv("PATH", f".:{os.environ.get('SATCHEL_TEST_PATH', '/usr/local/bin:/usr/bin:/bin')}")
    if children.find_program("cc") is None:
        pytest.skip("no C compiler is installed")
    (trap / "stdint.h").write_text("#error of the current folder\n")
    monkeypatch.setenv("CPATH", ":.")
    monkeypatch.setenv("COMPILER_PATH", ".")
    assert Path(compile_c("mine", "#include <stdint.h>\nint32_t one;\n", (), tmp_path).decode()).is_file()


def test_what_a_child_gets_of_the_environment() -> None:
    given = {
        "PATH": ":/usr/bin:.:bin",
        "LD_LIBRARY_PATH": ":",
        "LD_PRELOAD": "./a.so libfault.so:/opt/b.so",
        "PYTHONPATH": ".:/opt/modules",
        "PYTHONSTARTUP": "/x.py",
        "PYTHONWARNINGS": "error::json.Evil",
        "PYTHONHOME": "here",
        "PYTHONUSERBASE": "/users/me",
        "PYTHONHASHSEED": "7",
        "HOME": ".",
    }
    other = children.environment(given)
    assert (other["PATH"], other["PYTHONPATH"], other["HOME"]) == ("/usr/bin", "/opt/modules", ".")
    assert "LD_LIBRARY_PATH" not in other and other["LD_PRELOAD"] == "libfault.so /opt/b.so"
    own = children.environment(given, isolated=True)
    assert {n for n in own if n.startswith("PYTHON")} == {"PYTHONUSERBASE", "PYTHONHASHSEED"}


def test_programs_are_found_in_absolute_folders_alone(trap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f".:{trap.parent}::../trap")
    assert children.find_program("cc") is None
    assert children.find_program("./cc") == "./cc", "a path is its user's own word"
    monkeypatch.setenv("PATH", str(trap))
    assert children.find_program("cc") == str(trap / "cc")
    monkeypatch.delenv("PATH")
    assert children.find_program("no-such-program") is None


def test_the_module_path_of_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's entries for the current folder and the script's are removed, the user's own stay."""
    script, mine = tmp_path / "script", tmp_path / "mine"
    for folder in (script, mine):
        folder.mkdir()
    (script / "run.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script / "run.py")])
    before = children.module_path()
    monkeypatch.setattr(sys, "path", ["", str(script), "relative", str(mine), str(tmp_path), *sys.path])
    assert children.module_path() == [str(mine), *before]
    monkeypatch.setitem(sys.modules, "tokenizers", type(sys)("tokenizers"))
    sys.modules["tokenizers"].__file__ = str(script / "tokenizers" / "__init__.py")
    assert children.module_path() == [str(mine), *before, str(script)], "the last place: it is needed"


STARTS = {
    ("subprocess", name) for name in ("Popen", "run", "call", "check_call", "check_output", "getoutput")
} | {("shutil", "which"), ("asyncio", "create_subprocess_exec"), ("asyncio", "create_subprocess_shell")}
OF_OS = ("system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp")


def started(source: str) -> list[str]:
    """Calls that start or look up a program."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] + [getattr(node, "module", None) or ""]
            found += [n for n in names if n.partition(".")[0] in ("multiprocessing", "pty")]
            if isinstance(node, ast.ImportFrom) and node.module in ("subprocess", "shutil", "os"):
                found += [n for n in names if (node.module, n) in STARTS or n in OF_OS]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            pair = node.value.id, node.attr
            of_os = node.value.id == "os" and (node.attr in OF_OS or node.attr.startswith(("exec", "spawn")))
            if pair in STARTS or of_os:
                found.append(".".join(pair))
    return found


def test_programs_are_started_in_one_place() -> None:
    # The second tries what must be refused; the third is a load's client, which serves nobody.
    own = {"runtime/children.py", "runtime/sandbox/probe.py", "cli/load/processes.py"}
    files = [p for package in PACKAGES if package != "cext" for p in (ROOT / package).rglob("*.py")]
    found = {p.relative_to(ROOT).as_posix(): started(p.read_text(encoding="utf-8")) for p in files}
    assert {path: calls for path, calls in found.items() if calls and path not in own} == {}


@pytest.mark.parametrize("source", ["import subprocess as s, os\nos.execv(a, b)", "from shutil import which"])
def test_a_start_elsewhere_is_seen(source: str) -> None:
    assert started(source)


def test_a_worker_has_nothing_but_its_pipes(tmp_path: Path) -> None:
    """It inherits no other descriptor."""
    from tiny_file import write_model

    from satchel import Model

    path = write_model(tmp_path / "m.gguf")
    with (tmp_path / "mine").open("w") as mine:
        os.set_inheritable(mine.fileno(), True)
        with Model.load(path, worker="process") as model:
            folder = Path(f"/proc/{model.worker.pid}/fd")  # type: ignore[attr-defined]
            if not folder.is_dir():
                pytest.skip("no /proc here")
            found = {}
            for file in folder.iterdir():
                with suppress(FileNotFoundError):  # closed since
                    found[file.name] = str(file.readlink())
    assert not [name for name in found.values() if name.endswith("/mine")]
    assert sum(found[n].startswith("socket:") for n in found if n not in ("0", "1", "2")) == 1
