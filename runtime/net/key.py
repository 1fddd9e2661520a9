"""The key that two hosts share, in a file that its owner alone can read."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from satchel.errors import RequestError

LEAST, MOST = 32, 4096  # bytes of a key
OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_key(path: Path) -> bytes:
    """The key in a file, without white space around it. Raises RequestError for a file that is missing, that
    others than its owner can read, or that holds no key.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            _check(path, found)
            key = file.read(MOST + 1).strip()
    except OSError as error:
        reason = f"the key file cannot be read: {error.strerror}"
        raise RequestError(f"{path}: {reason}; `satchel device --make-key FILE` writes one") from None
    if not LEAST <= len(key) <= MOST:
        raise RequestError(
            f"{path}: expected a key of {LEAST} to {MOST:,} bytes, found {len(key):,}; `satchel device "
            "--make-key FILE` writes one"
        )
    return key


def _check(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise RequestError(f"{path}: expected a key file, found no regular file")
    if os.name != "posix":
        return
    if found.st_mode & OTHERS:
        mode = stat.S_IMODE(found.st_mode)
        raise RequestError(f"{path}: others can read or change this key (mode {mode:o}): chmod 600 {path}")
    if found.st_uid not in (0, os.geteuid()):
        raise RequestError(f"{path}: this key belongs to another user: copy it to a file of your own")


def make_key(path: Path) -> None:
    """Writes a new random key to a file that must not exist yet."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise RequestError(f"{path}: the key file cannot be written: {error.strerror}") from None
    with os.fdopen(handle, "w") as file:
        file.write(f"{secrets.token_hex(LEAST)}\n")
