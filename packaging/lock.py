"""Writes the lock files for deployments: `python packaging/lock.py`, which needs uv and a package index.

requirements.lock pins the packages that a server needs, build.lock those that build its wheel: exact
versions, each with the sha256 of every file that it may have. Both follow from pyproject.toml alone, for all
platforms and Python versions that it allows, and name no index: pip uses its configured index and refuses
other content (`pip install --require-hashes -r packaging/requirements.lock`).
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent / "pyproject.toml"
EXTRAS = ("server", "telemetry")
TOOLS = ("cmake>=3.20", "ninja>=1.11")  # scikit-build-core would install these by itself, without a hash
HEAD = "# Made by packaging/lock.py of pyproject.toml: change that, and run it again.\n"


def wanted(project: dict[str, Any]) -> dict[str, list[str]]:
    """The requirements of each lock file, by its name."""
    extras = project["project"]["optional-dependencies"]
    run = [*project["project"]["dependencies"], *(need for name in EXTRAS for need in extras[name])]
    return {"requirements.lock": run, "build.lock": [*project["build-system"]["requires"], *TOOLS]}


def locked(requirements: list[str], python: str) -> str:
    """The lock file that uv compiles from the requirements. CalledProcessError where it can't."""
    how = [
        "--universal",
        "--python-version",
        python,
        "--generate-hashes",
        "--no-header",
        "--no-emit-index-url",
    ]
    command = ["uv", "pip", "compile", *how, "--no-annotate", "--quiet", "-"]
    text = "\n".join(requirements) + "\n"
    return subprocess.run(command, input=text, text=True, check=True, stdout=subprocess.PIPE).stdout


def main() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    python = project["project"]["requires-python"].removeprefix(">=")
    for name, requirements in wanted(project).items():
        (HERE / name).write_text(HEAD + locked(requirements, python), encoding="utf-8")
        print(f"{HERE / name}: {len(requirements)} requirements", file=sys.stderr)


if __name__ == "__main__":
    main()
