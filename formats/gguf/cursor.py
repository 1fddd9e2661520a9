"""Reads a header front to back. Every length is compared with the bytes left in the file before it is used.

The bytes are copied by pread, not read through a mapping: a checked header cannot change afterwards, and a
file that is truncated meanwhile gives an error instead of SIGBUS. Memory is bounded by the size of the
header.
"""

from __future__ import annotations

from array import array
from pathlib import Path

from satchel.formats.gguf.check import (
    AGAIN,
    HEADER_LIMIT,
    STRICT,
    Judge,
    Violation,
    decode_name,
    fault,
    quote,
)
from satchel.formats.gguf.read_at import read_at
from satchel.formats.gguf.types import U32, U64

FIRST_READ = 1 << 16
TRUNCATED = "the file is cut short or damaged: download it again"


class Cursor:
    """data: the file's first bytes, as far as they have been read. pos: the offset of the next
    byte to parse.
    """

    def __init__(self, fd: int, path: Path, size: int, judge: Judge = STRICT) -> None:
        self.fd, self.path, self.size, self.judge = fd, path, size, judge
        self.pos = 0
        self.data = bytearray()

    def left(self) -> int:
        return self.size - self.pos

    def take(self, count: int, what: str) -> int:
        """Advances over `count` bytes, loads them into `data`, and returns the offset of the first one."""
        start = self.pos
        if start + count > len(self.data):
            self._fill(start, start + count, what)
        self.pos = start + count
        return start

    def u32(self, what: str) -> int:
        return int(U32.unpack_from(self.data, self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(U64.unpack_from(self.data, self.take(8, what))[0])

    def text(self, what: str) -> bytes:
        """A length-prefixed string."""
        length = self.u64(what)
        if length > self.left():
            raise fault(
                self.path, f"length of {what}", self.pos - 8, f"expected at most {self.left()}, got {length}"
            )
        start = self.take(length, what)
        return bytes(self.data[start : self.pos])

    def name(self, what: str, limit: int) -> str:
        start = self.pos
        raw = self.text(what)
        try:
            return decode_name(raw, limit)
        except Violation as reason:
            self.judge.refuse(fault(self.path, what, start, str(reason)))
        return f"{quote(raw)} at byte {start}"  # a unique placeholder, so that a lenient reader can continue

    def check_count(self, count: int, at: int, smallest: int, limit: int, what: str) -> None:
        """Raises a Fault where `count` items (read at byte `at`) of at least `smallest` bytes exceed the
        bytes left.
        """
        possible = min(self.left() // smallest, limit)
        if count > possible:
            raise fault(self.path, what, at, f"expected at most {possible}, got {count}")

    def strings(self, count: int, what: str) -> array[int]:
        """Advances over `count` strings without creating them: string i is data[starts[i] : starts[i + 1] -
        8].
        """
        starts = array("Q")
        append, unpack, data, size = starts.append, U64.unpack_from, self.data, self.size
        pos, have = self.pos, len(data)
        for index in range(count):
            if pos + 8 > have:
                self._fill(pos, pos + 8, what)
                have = len(data)
            length = unpack(data, pos)[0]
            pos += 8
            if length > size - pos:
                reason = f"expected at most {size - pos}, got {length}"
                raise fault(self.path, f"length of string {index} of {what}", pos - 8, reason)
            append(pos)
            pos += length
        append(pos + 8)
        self.take(pos - self.pos, what)
        return starts

    def _fill(self, start: int, end: int, what: str) -> None:
        if end > self.size:
            reason = f"expected {end - start} bytes, got the end of the file after {self.size - start}"
            raise fault(self.path, what, start, reason, TRUNCATED)
        if end > HEADER_LIMIT:
            reason = f"expected metadata and tensor list within {HEADER_LIMIT} bytes, got more"
            raise fault(self.path, what, start, reason, AGAIN)
        data = self.data
        goal = min(self.size, HEADER_LIMIT, max(end, 2 * len(data), FIRST_READ))
        while len(data) < goal:
            chunk = bytearray(goal - len(data))
            count = read_at(self.fd, memoryview(chunk), len(data))
            if not count:
                reason = f"expected {self.size} bytes in the file, got its end: it was cut while being read"
                raise fault(self.path, what, len(data), reason, TRUNCATED)
            data += memoryview(chunk)[:count]
