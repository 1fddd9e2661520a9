"""The values that the store speaks in: a model that is there, and how far a download is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

OWN = "store"  # the place of what was pulled; every other place is read, never written


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model that can be loaded.

    name: what `find` takes. place: whose folder it lies in (store, folder, huggingface, ollama, lmstudio).
    paths: its file, or all parts of a split set in order. size: bytes of all of them. modified: seconds
    since the epoch. sha256: of the first file, "" where nothing says. licence: "" where nothing says.
    """

    name: str
    place: str
    paths: tuple[Path, ...]
    size: int
    modified: float
    sha256: str = ""
    licence: str = ""

    @property
    def path(self) -> Path:
        """What is opened: the file, or the first part."""
        return self.paths[0]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a pull is. file: what is fetched now; done and total: bytes of it; total 0: not known yet.

    sha256: the file's, "" where the server does not tell it before.
    """

    file: str
    done: int
    total: int
    sha256: str = ""


# Called often, from one thread at a time; an exception that it raises ends the pull, which can be resumed.
Watch = Callable[[Progress], None]
