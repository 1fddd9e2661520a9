"""Values of the store's interface: a stored model, and the progress of a download."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

OWN = "store"  # the place of pulled models; all other places are only read


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model on this machine."""

    name: str  # as `Store.find` takes it
    place: str  # store, folder, huggingface, ollama, lmstudio, or file for a path
    paths: tuple[Path, ...]  # its file, or all parts of a split set in order
    size: int  # bytes of all parts
    modified: float  # seconds since 1970
    sha256: str = ""  # of the first file; "": unknown
    licence: str = ""  # "": unknown

    @property
    def path(self) -> Path:
        """The file to open: of a split set, the first part."""
        return self.paths[0]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a pull."""

    file: str  # the file that is being downloaded
    done: int  # its bytes so far
    total: int  # its size; 0: not known yet
    sha256: str = ""  # its digest; "" where the server does not give it


# Called often, from one thread at a time. An exception in it ends the pull, which can be resumed.
Watch = Callable[[Progress], None]
