"""Details of a model file in Ollama's shape, read from the GGUF header and cached until the file changes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from satchel.errors import SatchelError
from satchel.formats.gguf import StringArray, Typed, open_gguf
from satchel.formats.gguf.describe import describe_value
from satchel.formats.gguf.labels import size_label
from satchel.runtime.kv.identity import identity
from satchel.server.flavour import JsonObject
from satchel.store.details import Details, read_details

TEMPLATE = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True)
class FileDetails:
    """The details of one model file."""

    digest: str  # of tensors and metadata that affect the output; 64 hexadecimal digits
    details: Details

    def as_json(self) -> JsonObject:
        """Ollama's `details` object."""
        found = self.details
        return {
            "parent_model": "",
            "format": "gguf",
            "family": found.architecture,
            "families": [found.architecture] if found.architecture else [],
            "parameter_size": size_label(found.parameters) if found.parameters else "",
            "quantization_level": found.quantization,
        }


UNREADABLE = FileDetails("0" * 64, Details("", "", 0, "", 0, 0, 0, "", "", "", "", ()))


def listed(path: Path) -> FileDetails:
    """The details of a file; UNREADABLE for an invalid one, so that a list of models still has an entry."""
    try:
        return shown(path)
    except (SatchelError, OSError):
        return UNREADABLE


def shown(path: Path) -> FileDetails:
    """The details of a file, cached by its size and modification time. ModelError for an invalid file."""
    found = path.stat()
    return _file(path, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=256)
def _file(path: Path, size: int, changed: int) -> FileDetails:
    with open_gguf(path) as gguf:
        return FileDetails(identity(gguf), read_details(path))


def metadata(path: Path, *, whole: bool) -> JsonObject:
    """The file's metadata without the chat template. Arrays are None unless `whole`."""
    with open_gguf(path) as gguf:
        return {key: _value(gguf.metadata.typed(key), whole) for key in gguf.metadata if key != TEMPLATE}


def _value(typed: Typed, whole: bool) -> object:
    if not isinstance(typed.value, StringArray | np.ndarray):
        return describe_value(typed)["value"]
    if not whole:
        return None
    return list(typed.value) if isinstance(typed.value, StringArray) else typed.value.tolist()
