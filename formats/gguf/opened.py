"""Files passed as open descriptors: a sandboxed process that may not open files gets them from its parent."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from satchel.errors import ModelError

# Do not wait for a FIFO's writer, do not acquire a controlling terminal, do not leak to child processes; on
# Windows, do not translate line ends. Each flag is 0 where a system lacks it.
NAMES = ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT")
OPEN_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in NAMES)


class OpenFile:
    """A descriptor with the path for error messages. The object owns the descriptor until it is taken.

    descriptor: -1 where it has been taken or closed, or has not been received by this process yet.
    """

    def __init__(self, path: Path, descriptor: int = -1) -> None:
        self.path, self.descriptor = path, descriptor

    def take(self) -> int:
        """The descriptor. The caller owns it from now on and closes it."""
        taken, self.descriptor = self.descriptor, -1
        if taken < 0:
            raise ValueError(f"{self.path}: it has no descriptor, or it was taken")
        return taken

    def close(self) -> None:
        """Closes the descriptor where it has not been taken. Any thread may do so at any time."""
        # Forgotten first: once it is closed the number may be that of a third thread's file.
        closing, self.descriptor = self.descriptor, -1
        if closing >= 0:
            with suppress(OSError):  # the file was only read: no data can be lost
                os.close(closing)


def open_file(path: Path) -> OpenFile:
    """Opens a file for reading. ModelError where that fails."""
    try:
        return OpenFile(path, os.open(path, OPEN_FLAGS))
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError | ValueError) -> ModelError:
    """The ModelError for a file that cannot be read."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return ModelError(f"{path}: can't be read: {reason}; check the path and its permissions")
