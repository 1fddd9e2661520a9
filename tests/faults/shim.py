"""Python interface of shim.c: compiled once, preloaded into a process, armed and disarmed there."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

# These numbers are those of shim.c.
FAMILIES = {
    "open": 1, "read": 2, "write": 4, "fsync": 8, "rename": 16, "mmap": 32, "ftruncate": 64, "close": 128,
    "malloc": 256, "fork": 512, "flock": 1024, "mkdir": 2048, "lseek": 4096, "fstat": 8192, "thread": 16384,
}  # fmt: skip
SHORT, STICKY, KILL_BEFORE, KILL_AFTER, POWER, MOVE = 1, 2, 4, 8, 16, 32
# Calls by which a writer changes the disk or holds a lock: a process is killed at each of them.
SYSTEM_CALLS = sum(number for name, number in FAMILIES.items() if name not in ("malloc", "thread"))


@dataclass(frozen=True, slots=True)
class Fault:
    """How the n-th call of a family fails."""

    family: str
    error: str  # a name of errno, or "short" for half of the bytes
    lasting: bool = False  # every later call fails too, as on a full disk

    @property
    def flags(self) -> int:
        return (SHORT if self.error == "short" else 0) | (STICKY if self.lasting else 0)

    @property
    def number(self) -> int:
        return errno.ENOSPC if self.error == "short" else int(getattr(errno, self.error))

    def __str__(self) -> str:
        return f"{self.family} {self.error}{' from then on' if self.lasting else ''}"


FAULTS = (
    Fault("open", "EIO"), Fault("open", "EMFILE", lasting=True),
    Fault("read", "EIO"), Fault("read", "EINTR"), Fault("read", "short"),
    Fault("write", "EIO"), Fault("write", "ENOSPC", lasting=True), Fault("write", "EINTR"),
    Fault("write", "short"), Fault("write", "short", lasting=True),
    Fault("fsync", "EIO"), Fault("rename", "EIO"),
    Fault("mmap", "ENOMEM"), Fault("mmap", "ENOMEM", lasting=True),
    Fault("ftruncate", "ENOSPC"), Fault("close", "EIO"),
    Fault("malloc", "ENOMEM"), Fault("malloc", "ENOMEM", lasting=True),
    Fault("fork", "EAGAIN"), Fault("flock", "EINTR"), Fault("flock", "ENOLCK"),
    Fault("mkdir", "ENOSPC"), Fault("lseek", "EIO"), Fault("fstat", "EIO"), Fault("thread", "EAGAIN"),
)  # fmt: skip


def compiler() -> str | None:
    """The C compiler; None where there is none, or the shim does not support the system."""
    return shutil.which("cc") if os.uname().sysname == "Linux" else None


def build(folder: Path) -> Path:
    """The compiled library."""
    made = folder / "libfaults.so"
    source = Path(__file__).with_name("shim.c")
    command = [compiler() or "cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*command, str(source), "-o", str(made), "-ldl", "-lpthread"], check=True)
    return made


class Shim:
    """The preloaded library in this process."""

    def __init__(self) -> None:
        self._c = ctypes.CDLL(None)
        if not hasattr(self._c, "faults_arm"):
            raise RuntimeError("the shim is not loaded: start with LD_PRELOAD set to what build() gives")
        self._c.faults_disarm.restype = self._c.faults_fired.restype = ctypes.c_long

    def exempt(self, fd: int) -> None:
        """Calls on this descriptor never count."""
        self._c.faults_exempt(fd)

    def arm(
        self, family: int, number: int, error: int = 0, flags: int = 0, library: str | None = None
    ) -> None:
        """Makes the call of that number fail from now on; 0: only count."""
        text = None if library is None else library.encode()
        self._c.faults_arm(family, ctypes.c_long(number), error, flags, text)

    def disarm(self) -> int:
        """Returns the number of calls."""
        return int(self._c.faults_disarm())

    @property
    def fired(self) -> int:
        return int(self._c.faults_fired())

    def shift(self, seconds: int) -> None:
        """Moves the wall clock."""
        self._c.faults_shift(ctypes.c_long(seconds))
