"""Files that are open for reading. Some come as descriptors: a sandboxed process that may not open files gets
them from its parent. Opening one never waits, and a range is read whole, or the error says why not.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from satchel.errors import ModelError
from satchel.formats.gguf.read_at import read_at

# Do not wait for a FIFO's writer, do not acquire a controlling terminal, do not leak to child processes; on
# Windows, do not translate line ends. Each flag is 0 where a system lacks it.
NAMES = ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT")
OPEN_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in NAMES)
KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a disk",
}


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

    def regular(self, give: str) -> os.stat_result:
        """What the system knows of it. ModelError for what is no regular file; give: what to give instead.
        OSError where the system does not say.
        """
        info = os.fstat(self.descriptor)
        if not stat.S_ISREG(info.st_mode):
            kind = KINDS.get(stat.S_IFMT(info.st_mode), "a special file")
            raise ModelError(f"{self.path}: expected a regular file, got {kind}; give {give}")
        return info

    def read_into(self, offset: int, out: memoryview, short: str) -> None:
        """Fills `out` with the bytes from this offset on, by read calls: a file that shrinks meanwhile gives
        ModelError, not SIGBUS. short: what to do where the file ends before.
        """
        if self.descriptor < 0:
            raise ValueError(f"{self.path}: closed")
        done = 0
        while done < len(out):
            try:
                count = read_at(self.descriptor, out[done:], offset + done)
            except OSError as error:
                at = f"{self.path}: byte {offset + done}"
                raise ModelError(f"{at}: can't be read: {error.strerror}; check the disk") from None
            if not count:
                reason = f"expected data up to byte {offset + len(out)}, got the end at {offset + done}"
                raise ModelError(f"{self.path}: file: {reason}; {short}")
            done += count

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
