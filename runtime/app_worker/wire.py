"""Messages between a C program and its worker, as cext/embed/wire.h has them: a head, then values. A value is
eight bytes, or a size of eight bytes and as many bytes behind it. All numbers are little-endian.

What is read is not trusted: a length reserves nothing beyond MOST, and a value that is not there is a
RequestError.
"""

from __future__ import annotations

import struct
from typing import Any, BinaryIO

import numpy as np

from satchel.errors import RequestError
from satchel.runtime.graph import Array

HEAD = struct.Struct("<IiQ")  # magic, kind, bytes of the values
REQUEST, ANSWER = 0x32515753, 0x32415753  # "SWQ2", "SWA2": the direction, and the version
ALIVE = 1  # kind of an answer that is none yet; its value: milliseconds of silence that mean the worker's end
MOST = 1 << 28  # most bytes of the values
NUMBER, REAL = struct.Struct("<q"), struct.Struct("<d")


class Reader:
    """The values of a message, taken in their order."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            left = len(self._data) - self._at
            raise RequestError(
                f"a call of the program: expected {left} bytes at most at {self._at}, got {size}"
            )
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self) -> int:
        (value,) = NUMBER.unpack(self._take(NUMBER.size))
        return int(value)

    def real(self) -> float:
        (value,) = REAL.unpack(self._take(REAL.size))
        return float(value)

    def data(self) -> bytes:
        return self._take(self.number())

    def text(self) -> str:
        try:
            return self.data().decode()
        except UnicodeDecodeError as error:
            raise RequestError(f"a call of the program: expected a text in UTF-8: {error}") from None

    def rows(self, dtype: np.dtype[Any]) -> Array:
        """An array of records."""
        raw = self.data()
        if len(raw) % dtype.itemsize:
            raise RequestError(f"a call of the program: {len(raw)} bytes are no rows of {dtype.itemsize}")
        return np.frombuffer(raw, dtype)

    def ints(self) -> list[int]:
        return [int(i) for i in self.rows(np.dtype("<i4"))]

    def end(self) -> None:
        """Refuses values that nobody took."""
        if self._at != len(self._data):
            raise RequestError(f"a call of the program has {len(self._data) - self._at} bytes too many")


def number(value: int) -> bytes:
    """A number as a value."""
    return NUMBER.pack(value)


def data(value: bytes) -> bytes:
    """Bytes as a value."""
    return NUMBER.pack(len(value)) + value


def read_request(file: BinaryIO) -> tuple[int, bytes] | None:
    """The next call and its values; None at the end of the pipe, even inside a message. RequestError for what
    is no message: nothing behind it can be read either.
    """
    head = file.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    magic, kind, size = HEAD.unpack(head)
    if magic != REQUEST or size > MOST:
        raise RequestError("expected calls of libsatchel on the standard input, got other bytes")
    values = file.read(size)
    return None if len(values) < size else (kind, values)


def write_answer(file: BinaryIO, kind: int, values: bytes) -> None:
    """Writes an answer. kind: 0, ALIVE, or a negative code, whose text is the only value."""
    file.write(HEAD.pack(ANSWER, kind, len(values)) + values)
    file.flush()
