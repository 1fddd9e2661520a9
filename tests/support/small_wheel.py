"""A small wheel that looks like satchel's, and a root that looks like Debian's, for tests of packaging."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packaging"))

VERSION = "1.2.3"
COMMAND = 'def run() -> None:\n    """Answer one prompt."""\n'
FILES = {
    "satchel/__init__.py": "",
    "satchel/cli/commands/run.py": COMMAND,
    "satchel/cext/libsatchel_cpu.so": "kernels",
    "satchel/models/small.gguf": "GGUF",
    f"satchel-{VERSION}.dist-info/METADATA": f"Metadata-Version: 2.4\nName: satchel\nVersion: {VERSION}\n",
}


def write_wheel(folder: Path, more: Mapping[str, str] | None = None) -> Path:
    """Writes the wheel, with more files."""
    path = folder / f"satchel-{VERSION}-py3-none-manylinux_2_17_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**FILES, **(more or {})}.items():
            archive.writestr(name, content)
    return path


def write_root(folder: Path, *programs: str) -> Path:
    """Writes a root with Python's folders, and programs in usr/bin."""
    for name in (
        "usr/lib/python3.13/os.py",
        "etc/passwd",
        *(f"usr/bin/{p}" for p in ("python3.13", *programs)),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "usr/bin/python3").symlink_to("python3.13")
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    return folder
