"""Files that appear whole or not at all: written beside their place, flushed to the disk, then renamed.

Only a killed process or a lost machine can leave the hidden temporary file behind; a file under its own name
is complete. A temporary file is locked while it is written, so what a dead process left can be told apart.
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
    """Write each file by its function, then give all of them their names, the first file last.

    Whatever goes wrong (an error of `fill`, a full disk, Ctrl-C) removes what was written; the files that
    stood there before stay, but for those of a set whose renaming was cut in the middle. RequestError where
    the disk says no.
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
    """Writes all of it to a file without a buffer, whose own write() may take a part alone."""
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
    """Whether the file is this process's now; it is until it is closed."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _find_target(path: Path) -> Path:
    """Where a link leads, so that the link stays; a device or folder must not be renamed over."""
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
    """Make the renames last; some file systems can't do this, and the data is safe anyway."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
