"""The layout of a program with a model behind it, which cext/embed/bundle.c reads.

The program's own bytes, zeros up to a multiple of ALIGN, the model, zeros up to a multiple of 8, the
footer. Every system maps a file at multiples of ALIGN. A signature of Windows is appended at a multiple of
8, so behind the footer without a gap.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

from satchel.formats.gguf.atomic import write_all

MAGIC, ALIGN, SERVE = b"SATBNDL1", 65536, 1
FOOTER = struct.Struct("<8sIIQQ32s")  # magic, flags, CRC-32 of the footer with 0 here, offset, size, SHA-256
CHUNK = 1 << 23


def append_model(
    file: IO[bytes], program: bytes, model: Path, flags: int, progress: Callable[[int], None]
) -> None:
    """Writes program, model and footer. progress: called with the bytes of each write of the model."""
    offset = -(-len(program) // ALIGN) * ALIGN
    write_all(file, program + bytes(offset - len(program)))
    size, digest = copy(model, file, progress)
    write_all(file, bytes(-size % 8))
    write_all(file, footer(offset, size, digest, flags))


def copy(source: Path, file: IO[bytes], progress: Callable[[int], None]) -> tuple[int, bytes]:
    """Copies a file; gives its size and SHA-256."""
    digest, size = hashlib.sha256(), 0
    with source.open("rb") as read:
        while chunk := read.read(CHUNK):
            digest.update(chunk)
            write_all(file, chunk)
            size += len(chunk)
            progress(len(chunk))
    return size, digest.digest()


def footer(offset: int, size: int, digest: bytes, flags: int) -> bytes:
    crc = zlib.crc32(FOOTER.pack(MAGIC, flags, 0, offset, size, digest))
    return FOOTER.pack(MAGIC, flags, crc, offset, size, digest)
