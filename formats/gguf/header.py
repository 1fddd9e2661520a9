"""Parses the header: magic, counts, metadata and tensor list. Every number is checked before it is used.

The pass is linear in the header's bytes and checks form only; the meaning of values is checked by their
users.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from satchel.formats.gguf.check import (
    AGAIN,
    COUNT_LIMIT,
    DIMS_LIMIT,
    KEY_LIMIT,
    NAME_LIMIT,
    STRICT,
    Fault,
    Judge,
    Violation,
    check_alignment,
    check_size,
    fault,
    find_type,
    pad,
    quote,
)
from satchel.formats.gguf.cursor import TRUNCATED, Cursor
from satchel.formats.gguf.magic import explain_magic
from satchel.formats.gguf.metadata import Metadata
from satchel.formats.gguf.types import (
    DEFAULT_ALIGNMENT,
    DTYPES,
    HEADER_BYTES,
    MAGIC,
    SCALARS,
    VERSIONS,
    ValueType,
)
from satchel.formats.gguf.values import StringArray, Typed

ALIGNMENT_KEY = "general.alignment"
SMALLEST_KEY = 14  # bytes: length, a name of one letter, type, a value of one byte
SMALLEST_TENSOR = 25  # bytes: length, a name of one letter, no dimension, type, offset
TENSOR_TAILS = tuple(Struct(f"<{dims}QIQ") for dims in range(DIMS_LIMIT + 1))  # dimensions, type, offset
VALUE_TYPES = {int(kind): kind for kind in ValueType}
UNKNOWN = "unknown"  # the format of a tensor with an invalid type or size, for a reader that continues


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The type, shape and place of a tensor."""

    name: str
    shape: tuple[int, ...]  # outermost dimension first
    type_id: int
    format: str
    offset: int  # bytes from the start of the file of its part
    nbytes: int
    part: int = 0  # index in the split set


@dataclass(frozen=True, slots=True)
class Header:
    """One file's header."""

    version: int
    alignment: int
    metadata: Metadata
    tensors: dict[str, TensorInfo]
    data_offset: int
    end: int  # offset after the last tensor's bytes


class Lazy(NamedTuple):
    """An array that was parsed but not built. It holds offsets, because the header buffer grows and moves
    while it is read.
    """

    element: ValueType
    start: int
    length: int
    starts: array[int] | None


class TensorEntry(NamedTuple):
    """A tensor as the header lists it. `offset` counts from the start of the data, which is not known yet."""

    shape: tuple[int, ...]
    type_id: int
    format: str
    offset: int
    nbytes: int


def parse_header(fd: int, path: Path, size: int, part: int = 0, judge: Judge = STRICT) -> Header:
    """The header of a regular file of `size` bytes. ModelError with the byte offset where it breaks a rule;
    where the reader could continue after a broken rule, the judge decides."""
    cursor = Cursor(fd, path, size, judge)
    version = _read_version(cursor)
    tensor_count = cursor.u64("number of tensors")
    key_count = cursor.u64("number of keys")
    cursor.check_count(tensor_count, 8, SMALLEST_TENSOR, COUNT_LIMIT, "number of tensors")
    cursor.check_count(key_count, 16, SMALLEST_KEY, COUNT_LIMIT, "number of keys")
    values: dict[str, Typed | Lazy] = {}
    for _ in range(key_count):
        _read_key(cursor, values, part)
    alignment = _read_alignment(path, values, judge)
    entries = _read_tensors(cursor, tensor_count, alignment)
    data_offset = cursor.pos + pad(cursor.pos, alignment)
    tensors = {name: _place(name, entry, data_offset, part) for name, entry in entries.items()}
    _check_end(cursor, tensors)
    end = max((info.offset + info.nbytes for info in tensors.values()), default=data_offset)
    return Header(version, alignment, _seal(cursor, values), tensors, data_offset, end)


def _read_version(cursor: Cursor) -> int:
    start = cursor.take(min(512, cursor.size), "header")
    magic = bytes(cursor.data[start : cursor.pos])
    if magic[:4] != MAGIC:
        raise fault(
            cursor.path, "magic", 0, f"expected 'GGUF', got {explain_magic(magic)}", "give a GGUF file"
        )
    if cursor.size < HEADER_BYTES:
        reason = f"expected at least {HEADER_BYTES} bytes, got a file of {cursor.size}"
        raise fault(cursor.path, "header", cursor.size, reason, TRUNCATED)
    cursor.pos = len(MAGIC)
    version = cursor.u32("version")
    if version in VERSIONS:
        return version
    if version and not version & 0xFFFF:
        got, do = f"a big-endian file (0x{version:08x})", "convert it again with little-endian output"
    elif version == 1:
        got, do = "1, which was given up in 2023", "convert the model again with a current converter"
    else:
        got, do = str(version), "update this program, or convert the model again"
    raise fault(cursor.path, "version", 4, f"expected 2 or 3, got {got}", do)


def _read_key(cursor: Cursor, values: dict[str, Typed | Lazy], part: int) -> None:
    start = cursor.pos
    key = cursor.name("key", KEY_LIMIT)
    if key in values:
        cursor.judge.refuse(
            fault(cursor.path, "key", start, f"expected each key once, got {quote(key)} again")
        )
    cursor.judge.place(part, key, start)
    kind = _read_type(cursor, f"type of {key}")
    if kind is ValueType.ARRAY:
        values[key] = _read_array(cursor, key)
    elif kind is ValueType.STRING:
        values[key] = Typed(kind, _read_string(cursor, key))
    else:
        values[key] = Typed(kind, _read_scalar(cursor, kind, key))


def _read_type(cursor: Cursor, what: str) -> ValueType:
    number = cursor.u32(what)
    kind = VALUE_TYPES.get(number)
    if kind is None:
        raise fault(cursor.path, what, cursor.pos - 4, f"expected a type from 0 to 12, got {number}")
    return kind


def _read_scalar(cursor: Cursor, kind: ValueType, key: str) -> bool | int | float:
    packer = SCALARS[kind]
    start = cursor.take(packer.size, key)
    if kind is ValueType.BOOL and cursor.data[start] > 1:
        cursor.judge.refuse(
            fault(cursor.path, key, start, f"expected a bool of 0 or 1, got {cursor.data[start]}")
        )
    value: bool | int | float = packer.unpack_from(cursor.data, start)[0]
    return value


def _read_string(cursor: Cursor, key: str) -> str:
    start = cursor.pos
    raw = cursor.text(key)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        at = start + 8 + error.start
        reason = f"expected UTF-8, got {quote(raw[error.start :][:8])}"
        cursor.judge.refuse(fault(cursor.path, key, at, reason))
        return raw.decode(errors="replace")


def _read_array(cursor: Cursor, key: str) -> Lazy:
    element = _read_type(cursor, f"element type of {key}")
    if element is ValueType.ARRAY:
        reason = "expected numbers or strings in an array, got an array of arrays"
        raise fault(
            cursor.path, key, cursor.pos - 4, reason, "no runtime reads these: convert the model again"
        )
    count = cursor.u64(f"length of {key}")
    size = 8 if element is ValueType.STRING else SCALARS[element].size
    cursor.check_count(count, cursor.pos - 8, size, cursor.left(), f"length of {key}")
    start = cursor.pos
    if element is ValueType.STRING:
        return Lazy(element, start, count, cursor.strings(count, key))
    cursor.take(count * size, key)
    # max() of a bytearray is a Python loop; numpy reads the same bytes without a copy.
    if element is ValueType.BOOL and count and np.frombuffer(cursor.data, np.uint8, count, start).max() > 1:
        cursor.judge.refuse(fault(cursor.path, key, start, "expected bools of 0 or 1, got other bytes"))
    return Lazy(element, start, count, None)


def _read_alignment(path: Path, values: dict[str, Typed | Lazy], judge: Judge) -> int:
    value = values.get(ALIGNMENT_KEY)
    if value is None:
        return DEFAULT_ALIGNMENT
    if not isinstance(value, Typed) or value.type is not ValueType.UINT32 or not isinstance(value.value, int):
        got = value.type_name if isinstance(value, Typed) else "an array"
        judge.refuse(Fault(str(path), ALIGNMENT_KEY, None, f"expected a uint32, got {got}", AGAIN))
        return DEFAULT_ALIGNMENT
    try:
        return check_alignment(value.value)
    except Violation as reason:
        judge.refuse(Fault(str(path), ALIGNMENT_KEY, None, str(reason), AGAIN))
    return DEFAULT_ALIGNMENT


def _read_tensors(cursor: Cursor, count: int, alignment: int) -> dict[str, TensorEntry]:
    """The tensor list. Tensors must follow each other in the data without a gap or overlap."""
    entries: dict[str, TensorEntry] = {}
    offset = 0
    for _ in range(count):
        start = cursor.pos
        name = cursor.name("tensor name", NAME_LIMIT)
        if name in entries:
            cursor.judge.refuse(
                fault(cursor.path, f"tensor {name}", start, "expected each name once, got it again")
            )
        entry = _read_entry(cursor, name)
        if entry.offset != offset:
            reason = f"expected offset {offset} (tensors in order, no gap), got {entry.offset}"
            cursor.judge.refuse(fault(cursor.path, f"tensor {name}", cursor.pos - 8, reason))
        entries[name] = entry
        offset = entry.offset + entry.nbytes + pad(entry.nbytes, alignment)
    return entries


def _read_entry(cursor: Cursor, name: str) -> TensorEntry:
    dims = cursor.u32(name)
    if dims > DIMS_LIMIT:
        reason = f"expected at most {DIMS_LIMIT}, got {dims}"
        raise fault(cursor.path, f"dimensions of {name}", cursor.pos - 4, reason)
    tail = TENSOR_TAILS[dims]
    at = cursor.take(tail.size, name)
    *inner_first, type_id, offset = tail.unpack_from(cursor.data, at)
    shape = tuple(inner_first[::-1])
    try:
        kind = find_type(type_id)
        return TensorEntry(shape, type_id, kind.name, offset, check_size(shape, kind))
    except Violation as reason:
        cursor.judge.refuse(fault(cursor.path, f"tensor {name}", at, str(reason)))
    return TensorEntry(shape, type_id, UNKNOWN, offset, 0)


def _seal(cursor: Cursor, values: dict[str, Typed | Lazy]) -> Metadata:
    """The metadata of a completely read header: copies its bytes, and builds arrays as views of the copy."""
    data = bytes(memoryview(cursor.data)[: cursor.pos])
    source = str(cursor.path)
    sealed = {
        key: value if isinstance(value, Typed) else _build(data, value, f"{source}: {key}")
        for key, value in values.items()
    }
    return Metadata(sealed, source)


def _build(data: bytes, lazy: Lazy, where: str) -> Typed:
    value: StringArray | np.ndarray[Any, Any]
    if lazy.starts is not None:
        value = StringArray(data, lazy.starts, where)
    else:
        value = np.frombuffer(data, DTYPES[lazy.element], lazy.length, lazy.start)
    return Typed(ValueType.ARRAY, value, lazy.element)


def _place(name: str, entry: TensorEntry, data_offset: int, part: int) -> TensorInfo:
    offset = data_offset + entry.offset
    return TensorInfo(name, entry.shape, entry.type_id, entry.format, offset, entry.nbytes, part)


def _check_end(cursor: Cursor, tensors: Mapping[str, TensorInfo]) -> None:
    """Refuses a file that ends before its tensors do: by one error, however many it lacks."""
    lacking = [info for info in tensors.values() if info.offset + info.nbytes > cursor.size]
    if not lacking:
        return
    first, end = lacking[0], max(info.offset + info.nbytes for info in lacking)
    reason = f"expected data up to byte {end}, got a file of {cursor.size}"
    if len(lacking) > 1:
        reason += f", too short for {len(lacking)} of its {len(tensors)} tensors"
    cursor.judge.refuse(fault(cursor.path, f"tensor {first.name}", first.offset, reason, TRUNCATED))
