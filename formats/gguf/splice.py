"""Adds keys to a file behind its own, or takes keys away: all other bytes are copied as they are.

So taking away what was added gives the first file back, bit for bit: version, order, padding between tensors
and whatever stands behind them. Only the padding between header and data is made anew, which must be zeros.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO

from satchel.errors import ModelError, RequestError
from satchel.formats.gguf.atomic import replace_files
from satchel.formats.gguf.check import COUNT_LIMIT, HEADER_LIMIT, Judge, pad
from satchel.formats.gguf.reader import GGUF, Part
from satchel.formats.gguf.types import HEADER_BYTES, MAGIC, U32, U64
from satchel.formats.gguf.values import Typed, encode_text, pack

CHUNK = 1 << 23


class _Places(Judge):
    """Notes where each key begins."""

    def __init__(self) -> None:
        self.starts: dict[str, int] = {}

    def place(self, part: int, key: str, at: int) -> None:
        self.starts[key] = at


class HeaderBytes:
    """The parts of one file's header as bytes: each key with its value, then the tensor list.

    entries: by key, in the order of the file. tensors: the list. data: offset of the tensors' data.
    """

    def __init__(self, gguf: GGUF) -> None:
        if len(gguf.parts) > 1:
            raise RequestError(
                f"{gguf.path}: a set of {len(gguf.parts)} parts: expected one file; merge it first with "
                "`satchel merge`"
            )
        places = _Places()
        part = Part(gguf.path, judge=places)
        try:
            if part.stamp != gguf.parts[0].stamp:
                raise ModelError(f"{gguf.path}: was changed while it was read; try again")
            self.version, self.size = part.header.version, part.size
            self.count, self.data = len(part.header.tensors), part.data_offset
            last = next(reversed(places.starts), "")
            end = HEADER_BYTES
            if last:
                end = places.starts[last] + len(entry(last, part.header.metadata.typed(last)))
            # Shorter than the padding where the list ends early: what follows it is padding.
            names = sum(8 + len(encode_text(name)) for name in part.header.tensors)
            listed = names + sum(4 + 8 * len(i.shape) + 12 for i in part.header.tensors.values())
            head = bytes(part.view(0, self.data))
        finally:
            part.close()
        ends = [*list(places.starts.values())[1:], end]
        self.entries = {
            key: head[start:stop] for (key, start), stop in zip(places.starts.items(), ends, strict=True)
        }
        self.tensors = head[end : end + listed]
        self.alignment = gguf.alignment
        if any(head[end + listed :]):
            raise ModelError(
                f"{gguf.path}: header at byte {end + listed}: expected zeros up to the data at byte "
                f"{self.data}, got other bytes; they would be lost: write the file anew with `satchel merge`"
            )

    def pack(self, entries: Mapping[str, bytes]) -> bytes:
        """The header with these entries, padded."""
        body = b"".join((*entries.values(), self.tensors))
        head = MAGIC + U32.pack(self.version) + U64.pack(self.count) + U64.pack(len(entries)) + body
        return head + bytes(pad(len(head), self.alignment))

    def checksum(self, without: Collection[str]) -> int:
        """CRC-32 of the entries but those of these keys, and of the tensor list."""
        found = 0
        for key, raw in self.entries.items():
            found = found if key in without else zlib.crc32(raw, found)
        return zlib.crc32(self.tensors, found)


def entry(key: str, value: Typed) -> bytes:
    """A key and its value as in a file."""
    raw = encode_text(key)
    return U64.pack(len(raw)) + raw + pack(value)


def splice(
    gguf: GGUF,
    target: Path,
    sets: Mapping[str, Typed],
    removes: Collection[str] = (),
    progress: Callable[[int], None] | None = None,
) -> int:
    """Writes the file without the keys `removes`, and with `sets` behind its others, to `target`, atomically;
    gives the number of bytes. progress: called with the bytes of each write.

    RequestError where `target` is the file itself, or the header would be larger than readers take.
    """
    if target.exists() and target.samefile(gguf.path):
        raise RequestError(f"{target}: expected another file than the one that is read")
    head = HeaderBytes(gguf)
    kept = {key: raw for key, raw in head.entries.items() if key not in removes and key not in sets}
    header = head.pack(kept | {key: entry(key, value) for key, value in sets.items()})
    if len(header) > HEADER_LIMIT or len(kept) + len(sets) > COUNT_LIMIT:
        raise RequestError(
            f"{target}: expected a header of at most {HEADER_LIMIT:,} bytes, got {len(header):,}"
        )

    def fill(file: IO[bytes]) -> None:
        file.write(header)
        for piece in _data(gguf, head.data, head.size):
            file.write(piece)
            if progress is not None:
                progress(len(piece))

    replace_files([(target, partial(fill))])
    return len(header) + head.size - head.data


def _data(gguf: GGUF, start: int, end: int) -> Iterator[bytes]:
    """The file's bytes from the tensors' data on, copied by read calls."""
    for at in range(start, end, CHUNK):
        piece = bytearray(min(CHUNK, end - at))
        gguf.parts[0].read_into(at, memoryview(piece))
        yield bytes(piece)


__all__ = ["HeaderBytes", "entry", "splice"]
