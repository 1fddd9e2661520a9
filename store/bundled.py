"""The model that comes with the program."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from satchel.store.stored import StoredModel

BUNDLED = "bundled"  # the place of the model in `satchel list`
NAME = re.compile(r"satchel-40m-.*\.gguf")


def bundled_file() -> Path | None:
    """The bundled model's file; None in an install without one."""
    found = sorted(str(file) for file in files("satchel.models").iterdir() if NAME.fullmatch(file.name))
    return Path(found[0]) if found else None


def in_bundle() -> Iterator[StoredModel]:
    """The bundled model, by the name under which a server serves it."""
    path = bundled_file()
    if path is not None:
        info = path.stat()
        yield StoredModel(path.stem, BUNDLED, (path,), info.st_size, info.st_mtime)
