"""Reads safetensors files, which are untrusted: every number of the header is checked against the file's size
before it is used, and rows are copied by read calls, not through a mapping.
"""

from __future__ import annotations

import json
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from satchel.errors import ModelError
from satchel.formats.convert.stored import DTYPES, Array, Stored
from satchel.formats.gguf.check import NUMBER_LIMIT, quote
from satchel.formats.gguf.opened import open_file, unreadable

HEADER_LIMIT = 100_000_000  # bytes: the limit of the format
DIMS_LIMIT = 8
AGAIN = "the file is damaged or no safetensors file: download it again"


class SafetensorsFile:
    """One open file; `tensors` by name, in the order of their data. `metadata` is its free text."""

    def __init__(self, path: Path) -> None:
        self.path, self._file = path, open_file(path)
        try:
            self.size = self._file.regular("a checkpoint's folder").st_size
            self.tensors = self._read_header()
        except OSError as error:
            self.close()
            raise unreadable(path, error) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def _fault(self, what: str, reason: str) -> ModelError:
        return ModelError(f"{self.path}: {what}: {reason}; {AGAIN}")

    def _read_header(self) -> dict[str, Stored]:
        if self.size < 8:
            raise self._fault("file", f"expected at least 8 bytes, got {self.size}")
        length = int.from_bytes(self._bytes(0, 8), "little")
        if not 2 <= length <= min(HEADER_LIMIT, self.size - 8):
            most = min(HEADER_LIMIT, self.size - 8)
            raise self._fault("length of the header at byte 0", f"expected 2 to {most}, got {length}")
        entries = self._parse(self._bytes(8, length))
        start, end = 8 + length, 0
        found: list[tuple[int, int, Stored]] = []
        for name, entry in entries.items():
            if name != "__metadata__":
                found.append(self._entry(name, entry, start))
        found.sort(key=lambda place: place[:2])
        for first, last, tensor in found:
            if first != end:
                raise self._fault(
                    f"tensor {quote(tensor.name)}", f"expected data from offset {end}, got {first}"
                )
            end = last
        if start + end != self.size:
            raise self._fault("file", f"expected {start + end} bytes by its header, got {self.size}")
        return {tensor.name: tensor for _, _, tensor in found}

    def _parse(self, raw: bytearray) -> dict[str, Any]:
        try:
            entries = json.loads(raw, object_pairs_hook=self._unique)
        except (ValueError, RecursionError) as error:
            raise self._fault("header at byte 8", f"expected JSON, got {quote(str(error))}") from None
        if not isinstance(entries, dict):
            raise self._fault("header at byte 8", f"expected a JSON object, got {quote(str(entries))}")
        return entries

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Refuses duplicate names: JSON allows them, and parsers disagree which one counts."""
        entries = dict(pairs)
        if len(entries) < len(pairs):
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise self._fault(f"name {quote(twice)} in the header", "expected it once, got it again")
        return entries

    def _entry(self, name: str, entry: Any, start: int) -> tuple[int, int, Stored]:
        """(first byte, last byte, tensor), offsets counted from `start`, where the data begins."""
        what = f"tensor {quote(name)}"
        fields = entry if isinstance(entry, dict) else {}
        dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise self._fault(what, f"expected a dtype of {', '.join(DTYPES)}, got {quote(str(dtype))}")
        if not _naturals(shape) or len(shape) > DIMS_LIMIT or prod(max(n, 1) for n in shape) > NUMBER_LIMIT:
            raise self._fault(
                what, f"expected a shape of up to {DIMS_LIMIT} whole numbers, got {quote(str(shape))}"
            )
        if not _naturals(offsets) or len(offsets) != 2:
            raise self._fault(what, f"expected two data_offsets, got {quote(str(offsets))}")
        first, last = offsets
        wanted = prod(shape) * DTYPES[dtype].itemsize
        if last - first != wanted or start + last > self.size:
            got = f"bytes {first} to {last} of {self.size - start}"
            raise self._fault(what, f"expected {wanted} bytes within the file for {dtype} {shape}, got {got}")
        read = partial(self._rows, start + first, tuple(shape), dtype)
        return first, last, Stored(name, tuple(shape), dtype, str(self.path), read)

    def _rows(self, at: int, shape: tuple[int, ...], dtype: str, first: int, last: int) -> Array:
        row = prod(shape[1:]) * DTYPES[dtype].itemsize
        raw = self._bytes(at + first * row, (last - first) * row)
        return np.frombuffer(raw, DTYPES[dtype]).reshape(last - first, *shape[1:])

    def _bytes(self, at: int, count: int) -> bytearray:
        out = bytearray(count)
        self._file.read_into(at, memoryview(out), "don't write to a checkpoint in use")
        return out


def _naturals(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and 0 <= n <= NUMBER_LIMIT for n in value)
