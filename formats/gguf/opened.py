"""A file that another process opened: one that may open none gets its descriptor."""

from __future__ import annotations

import os
from pathlib import Path

from satchel.errors import ModelError

# No wait for a FIFO's writer, no terminal taken over, no handle given to child processes.
OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class OpenFile:
    """A descriptor and the path that errors name. It is the owner's until it is taken. descriptor -1: on its
    way to this process.
    """

    def __init__(self, path: Path, descriptor: int = -1) -> None:
        self.path, self.descriptor = path, descriptor

    def take(self) -> int:
        """The descriptor, which the caller closes from now on."""
        taken, self.descriptor = self.descriptor, -1
        if taken < 0:
            raise ValueError(f"{self.path}: it has no descriptor, or it was taken")
        return taken

    def close(self) -> None:
        """Closes what was not taken."""
        if self.descriptor >= 0:
            os.close(self.take())


def open_file(path: Path) -> OpenFile:
    """Opens a file to be read. ModelError where it cannot be."""
    try:
        return OpenFile(path, os.open(path, OPEN_FLAGS))
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError | ValueError) -> ModelError:
    """What is said of a file that cannot be read."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return ModelError(f"{path}: can't be read: {reason}; check the path and its permissions")
