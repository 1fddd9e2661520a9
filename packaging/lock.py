"""Writes the locks for deployments: `python packaging/lock.py`, which needs uv and a package index.

requirements.lock holds what a server runs on, build.lock what builds its wheel: exact versions of all
packages, each with the sha256 of every file that it may be. They are made of pyproject.toml alone, for all
platforms and Pythons that it allows, and name no index: pip takes the files from the one that it is set up
for, and refuses any other content (`pip install --require-hashes -r packaging/requirements.lock`).
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
TOOLS = ("cmake>=3.20", "ninja>=1.11")  # what scikit-build-core would fetch by itself, without a hash
HEAD = "# Made by packaging/lock.py of pyproject.toml: change that, and run it again.\n"


def wanted(project: dict[str, Any]) -> dict[str, list[str]]:
    """The requirements that each lock is made of, by its name."""
    extras = project["project"]["optional-dependencies"]
    run = [*project["project"]["dependencies"], *(need for name in EXTRAS for need in extras[name])]
    return {"requirements.lock": run, "build.lock": [*project["build-system"]["requires"], *TOOLS]}


def locked(requirements: list[str], python: str) -> str:
    """What uv makes of them. CalledProcessError where it cannot."""
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
