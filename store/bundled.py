"""The model that comes with the program. This module alone knows where it is: in `satchel.models` of a
checkout and of an install from source, else in a package of its own, which the wheels require.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from satchel.store.stored import StoredModel

BUNDLED = "bundled"  # the place of the model in `satchel list`
PACKAGE = "satchel-model-40m"  # for pip
HOMES = ("satchel.models", "satchel_model_40m")
NAME = re.compile(r"satchel-40m-.*\.gguf")


def bundled_file() -> Path | None:
    """The bundled model's file; None in an install without one."""
    for home in HOMES:
        with suppress(ModuleNotFoundError):
            found = sorted(str(file) for file in files(home).iterdir() if NAME.fullmatch(file.name))
            if found:
                return Path(found[0])
    return None


def in_bundle() -> Iterator[StoredModel]:
    """The bundled model, by the name under which a server serves it."""
    path = bundled_file()
    if path is not None:
        info = path.stat()
        yield StoredModel(path.stem, BUNDLED, (path,), info.st_size, info.st_mtime)
