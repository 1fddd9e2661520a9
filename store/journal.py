"""The journal of a partial download: which byte ranges of the file are written. It survives kill -9.

The journal is a text file: the first line identifies the download, each further line `start end` is a range
that was written to the file before the line was. A torn line and all lines after it are ignored.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from satchel.formats.gguf.atomic import write_all

LARGEST = 1 << 50  # bytes; a larger size is treated as a server's error


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a file on a server."""

    url: str
    size: int
    etag: str  # "": the server gives none
    sha256: str  # "": the server gives none

    @property
    def lasting(self) -> bool:
        """Whether a later download can be recognized as the same file."""
        return bool(self.etag or self.sha256)


class ByteRanges:
    """A set of byte offsets, stored as sorted ranges that neither touch nor overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Adds the bytes from start up to end (exclusive)."""
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        last = first
        while last < len(self._starts) and self._starts[last] <= end:
            start, end = min(start, self._starts[last]), max(end, self._ends[last])
            last += 1
        self._starts[first:last], self._ends[first:last] = [start], [end]

    @property
    def total(self) -> int:
        return sum(self._ends) - sum(self._starts)

    @property
    def front(self) -> int:
        """The number of bytes from the beginning without a gap."""
        return self._ends[0] if self._starts and self._starts[0] == 0 else 0

    def gaps(self, size: int, piece: int) -> Iterator[tuple[int, int]]:
        """The missing ranges up to `size`, in pieces of at most `piece` bytes."""
        at = 0
        for start, end in [*zip(self._starts, self._ends, strict=True), (size, size)]:
            while at < min(start, size):
                yield at, min(at + piece, start, size)
                at = min(at + piece, start, size)
            at = max(at, end)


class Journal:
    """An open journal file. spans: the ranges in it."""

    def __init__(self, path: Path, identity: Identity) -> None:
        self.spans = ByteRanges()
        known = _read(path)
        if known is not None and known[0] == identity and identity.lasting:
            self.spans = known[1]
            _cut(path, known[2])
            self._file = path.open("ab", buffering=0)
        else:
            self._file = path.open("wb", buffering=0)
            write_all(self._file, json.dumps(asdict(identity)).encode() + b"\n")

    def add(self, start: int, end: int) -> None:
        """Adds a range that has been written to the file."""
        write_all(self._file, b"%d %d\n" % (start, end))
        self.spans.add(start, end)

    def close(self) -> None:
        self._file.close()


def read_journal(path: Path) -> tuple[Identity, ByteRanges] | None:
    """The contents of a journal; None where it is missing or invalid."""
    known = _read(path)
    return known and known[:2]


def _read(path: Path) -> tuple[Identity, ByteRanges, int] | None:
    """The contents of a journal, and the number of its bytes up to the first invalid line."""
    try:
        *lines, _torn = path.read_bytes().split(b"\n")
        identity = Identity(**json.loads(lines[0]))
    except (OSError, ValueError, TypeError, IndexError, RecursionError):
        return None
    if not _is_sound(identity):
        return None
    spans, read = ByteRanges(), len(lines[0]) + 1
    for line in lines[1:]:
        numbers = line.split(b" ")
        if len(numbers) != 2 or not all(n.isdigit() and len(n) < 17 for n in numbers):
            break
        start, end = map(int, numbers)
        if start >= end or end > identity.size:
            break
        spans.add(start, end)
        read += len(line) + 1
    return identity, spans, read


def _is_sound(identity: Identity) -> bool:
    """Whether the fields have their types and the size is in range."""
    texts = (identity.url, identity.etag, identity.sha256)
    whole = all(isinstance(text, str) for text in texts)
    return whole and type(identity.size) is int and 0 < identity.size <= LARGEST


def _cut(path: Path, size: int) -> None:
    """Truncates the journal to its valid lines, so that the next line is not appended to a torn one."""
    with path.open("r+b") as file:
        file.truncate(size)
