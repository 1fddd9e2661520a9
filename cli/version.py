"""`satchel --version --json`: which Satchel this is, and what it can compute with.

It is quick: libraries are opened, and no device but the processor is. `satchel doctor` computes with each.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

SBOM = "sboms/satchel.cdx.json"  # below .dist-info: PEP 770
COMMIT = "satchel:commit"  # a property of the SBOM in a wheel, which packaging/sbom.py writes
SECONDS = 10  # for git


def facts() -> dict[str, Any]:
    """What `--version --json` prints."""
    return {
        "name": "satchel",
        "version": metadata.version("satchel"),
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "libraries": [_library(found) for found in _offered()],
    }


def text() -> str:
    """The facts as JSON."""
    return json.dumps(facts(), indent=2)


def commit() -> str | None:
    """The commit that this Satchel was made from; None where nothing says it.

    A wheel of a release has it in its SBOM, pip notes it for `git+https://...`, in a checkout git tells it.
    """
    try:
        found = metadata.distribution("satchel")
    except metadata.PackageNotFoundError:
        return None
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    stated = origin.get("vcs_info", {}).get("commit_id") or _of_sbom(found.read_text(SBOM))
    if stated:
        return str(stated)
    if origin.get("dir_info", {}).get("editable"):
        return _of_checkout(Path(unquote(urlparse(origin.get("url", "")).path)))
    return None


def _of_sbom(content: str | None) -> str | None:
    try:
        rows = json.loads(content or "{}").get("metadata", {}).get("properties", [])
    except ValueError:
        return None
    return next((str(row["value"]) for row in rows if row.get("name") == COMMIT), None)


def _of_checkout(folder: Path) -> str | None:
    from satchel.runtime import children

    if children.find_program("git") is None or not (folder / ".git").exists():
        return None
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        done = children.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    told = done.stdout.strip()
    return told if done.returncode == 0 and re.fullmatch(r"[0-9a-f]{40,64}", told) else None


def _offered() -> tuple[Any, ...]:
    from satchel.runtime.device.libraries import offered

    return offered()


def _library(found: Any) -> dict[str, Any]:
    """A library: its kernel sets, how many devices it finds, and of the processor the set in use."""
    from satchel.runtime.device.libraries import kernel_sets, open_backend

    row: dict[str, Any] = {
        "backend": found.name,
        "file": found.path,
        "sets": list(kernel_sets(Path(found.path))),
        "usable": not found.reason,
        "reason": found.reason,
        "devices": 0,
        "set": None,
    }
    if found.reason:
        return row
    backend = open_backend(found)
    row["devices"] = backend.count()
    if found.name == "cpu":  # a GPU takes half a second to open
        try:
            with backend.open() as device:
                row["set"] = device.info().variant
        except Exception as error:  # a wrong SATCHEL_CPU, for one
            row["usable"], row["reason"] = False, str(error)
    return row
