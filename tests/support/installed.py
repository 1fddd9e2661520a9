"""libsatchel as it is installed: a prefix made by `cmake --install`, the bundled model built for it, and
what it answers a text with.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from embedded import ROOT
from once import made_once
from waiting import SECONDS

from satchel import Model
from satchel.formats.gguf import open_gguf
from satchel.runtime.aot.build import build

PROMPT = "Once upon a time"
TOKENS = 64  # of the examples' answers, which are greedy


def build_folder() -> Path:
    """The CMake build folder with the library of `make test`; skips where it was not built."""
    found = [p for p in sorted(ROOT.glob("build/py3-*")) if (p / "embed" / "libsatchel.so").exists()]
    if not found:
        pytest.skip("libsatchel was not built: make .venv/ready-to-test")
    return found[0]


def cmake() -> str:
    return tool("cmake", "cmake", Path(sys.executable).with_name("cmake"))


def tool(name: str, package: str, *places: Path) -> str:
    """The path of a program; skips, with the package that has it, where there is none."""
    found = next((str(p) for p in places if p.exists()), None) or shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}: apt-get install {package}")
    return found


def prefix(factory: pytest.TempPathFactory) -> Path:
    """A folder into which the library was installed, once for a test run."""
    folder = build_folder()
    command = [cmake(), "--install", str(folder), "--component", "embed", "--prefix"]
    return made_once(
        factory,
        "embed-prefix",
        lambda at: subprocess.run([*command, str(at)], check=True, capture_output=True),
    )


def environment(prefix: Path) -> dict[str, str]:
    """Where pkg-config and the loader find what was installed."""
    (folder,) = prefix.glob("lib*/**/pkgconfig")
    told = {"PKG_CONFIG_PATH": str(folder), "LD_LIBRARY_PATH": str(folder.parent)}
    return os.environ | told


def library_flags(prefix: Path, kind: str = "--libs") -> list[str]:
    """What pkg-config says: --cflags and --libs of the library."""
    command = [tool("pkg-config", "pkg-config"), "--cflags", kind, "satchel"]
    return ran(command, environment(prefix)).split()


def ran(command: Sequence[str | Path], env: Mapping[str, str], folder: Path | None = None) -> str:
    """The output of a program that must succeed."""
    done = subprocess.run(
        [str(word) for word in command], env=env, cwd=folder, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def bundled_app(factory: pytest.TempPathFactory, model: Path) -> tuple[Path, str]:
    """The bundled model, built, and the engine's greedy answer to PROMPT; once for a test run."""

    def make(folder: Path) -> None:
        with open_gguf(model) as gguf:
            build(gguf, folder / "app.gguf", context=512)
        with Model.load(model, context=512, device="cpu") as loaded:
            text = loaded.generate(PROMPT, temperature=0, max_tokens=TOKENS).read()
        (folder / "answer.txt").write_text(text, encoding="utf-8", newline="")

    folder = made_once(factory, "embed-app", make)
    return folder / "app.gguf", (folder / "answer.txt").read_text(encoding="utf-8")
