"""The one place where a model's name becomes a file: a path, or a name that the store knows."""

from __future__ import annotations

from pathlib import Path

from satchel.errors import ModelError
from satchel.store.lock import Hashing
from satchel.store.store import Store


def model_path(text: str, progress: Hashing | None = None) -> Path:
    """The file of a path or name. RequestError where no model has the name, or its file was changed.

    A path of nothing stays a path: the reader says what is wrong with it. progress(bytes done, bytes in all)
    is called while a file is hashed that was touched since it was pulled.
    """
    try:
        return Store().find(text, progress)
    except ModelError:
        return Path(text)
