"""Atomic file writes: a file is written to a hidden temporary file beside its target, synced, then renamed.

A file under its own name is therefore complete. Only a killed process or a power failure leaves a temporary
file behind. The writer locks it, so a file left by a dead process is recognized by its missing lock.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from satchel.errors import RequestError

try:
    import fcntl
except ImportError:  # no such locks on this system: every temporary file counts as in use
    fcntl = None  # type: ignore[assignment]

Fill = Callable[[IO[bytes]], None]


def replace_files(files: Sequence[tuple[Path, Fill]]) -> None:
    """Writes each file by its function, then renames all of them to their targets, the first file last.

    An error of `fill`, a full disk or Ctrl-C removes the temporary files, and the old files stay. Only a
    crash during the renames can leave a set with old and new files. RequestError where writing fails.
    """
    written: list[tuple[Path, Path]] = []
    path = Path()
    try:
        for path, fill in files:
            target = _find_target(path)
            spare = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.tmp")
            written.append((spare, target))
            _write_one(spare, fill)
        for spare, target in reversed(written):
            path = target
            spare.replace(target)
        for folder in {target.parent for _, target in written}:
            _sync_folder(folder)
    except OSError as error:
        raise RequestError(
            f"{path}: can't be written: {error.strerror or error}; check the path and the disk"
        ) from None
    finally:
        for spare, _ in written:
            with suppress(OSError):
                spare.unlink()


def write_all(file: IO[bytes], data: bytes | memoryview) -> None:
    """Writes all bytes to an unbuffered file, whose own write() may write only a part."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def find_abandoned(path: Path) -> list[Path]:
    """Temporary files of `path` that no process writes any more."""
    target = Path(os.path.realpath(path))
    ours = re.compile(rf"\.{re.escape(target.name[:200])}\.[0-9a-f]{{8}}\.tmp")
    try:
        beside = sorted(target.parent.iterdir())
    except OSError:
        return []
    return [p for p in beside if ours.fullmatch(p.name) and p.is_file() and not _in_use(p)]


def _in_use(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return not _lock(file)
    except OSError:
        return True


def _lock(file: IO[bytes]) -> bool:
    """Locks the file until it is closed. False where another process holds the lock, or without flock."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _find_target(path: Path) -> Path:
    """The path with symbolic links resolved, so that a link stays. RequestError for a device or folder."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise RequestError(
            f"{path}: expected a regular file or none, got something else; choose another name"
        )
    return target


def _write_one(spare: Path, fill: Fill) -> None:
    with spare.open("xb") as file:
        _lock(file)
        fill(file)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Syncs the folder so that the renames survive a crash. Some file systems can't; the data is
    safe anyway.
    """
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
