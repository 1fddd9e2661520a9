"""Writes GGUF v3 files and split sets atomically, tensor by tensor.

The writer checks the same rules as the reader (check.py), so every written file can be read.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from satchel.errors import RequestError
from satchel.formats.gguf.atomic import replace_files
from satchel.formats.gguf.check import (
    COUNT_LIMIT,
    DIMS_LIMIT,
    HEADER_LIMIT,
    KEY_LIMIT,
    NAME_LIMIT,
    Violation,
    check_alignment,
    check_size,
    decode_name,
    find_type,
    pad,
)
from satchel.formats.gguf.header import ALIGNMENT_KEY
from satchel.formats.gguf.metadata import Metadata
from satchel.formats.gguf.reader import GGUF
from satchel.formats.gguf.splits import COUNT_KEY, NUMBER_KEY, PARTS_LIMIT, SPLIT_KEYS, TENSORS_KEY, part_path
from satchel.formats.gguf.types import DEFAULT_ALIGNMENT, MAGIC, TYPE_IDS, U32, U64, ValueType
from satchel.formats.gguf.values import Typed, Value, encode_text, pack, typed

Buffer: TypeAlias = bytes | bytearray | memoryview | np.ndarray[Any, Any]
VERSION = 3


@dataclass(frozen=True, slots=True)
class TensorSource:
    """A tensor to write."""

    name: str
    shape: tuple[int, ...]  # outermost dimension first
    type: int | str  # GGUF's number or name ("q4_k")
    # Its bytes, or a function that returns them whole or in pieces; it is called when the tensor is written.
    data: Buffer | Callable[[], Buffer | Iterable[Buffer]]

    @property
    def type_id(self) -> int:
        if isinstance(self.type, int):
            return self.type
        if self.type not in TYPE_IDS:
            raise RequestError(
                f"tensor {self.name}: expected one of {', '.join(TYPE_IDS)}, got {self.type!r}"
            )
        return TYPE_IDS[self.type]

    def pieces(self) -> Iterator[memoryview]:
        data = self.data() if callable(self.data) else self.data
        for piece in [data] if isinstance(data, bytes | bytearray | memoryview | np.ndarray) else data:
            if isinstance(piece, np.ndarray):
                yield np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
            else:
                yield memoryview(piece)


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The layout of one file to write: the header, and each tensor with its size in bytes."""

    path: Path
    header: bytes
    tensors: tuple[tuple[TensorSource, int], ...]
    alignment: int

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        padded = (nbytes + pad(nbytes, self.alignment) for _, nbytes in self.tensors)
        return len(self.header) + sum(padded)


def sources(gguf: GGUF) -> list[TensorSource]:
    """The tensors of an open file as sources for a copy. Their bytes are copied by read calls (see GGUF)."""
    return [
        TensorSource(info.name, info.shape, info.type_id, partial(gguf.chunks, info.name))
        for info in gguf.tensors.values()
    ]


def write_gguf(
    path: str | Path,
    metadata: Mapping[str, Value | Typed | Sequence[Any]],
    tensors: Iterable[TensorSource],
    *,
    alignment: int | None = None,
    max_size: int | None = None,
    counts: Sequence[int] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Path]:
    """Writes one file, or a split set; returns the paths.

    alignment: by default general.alignment of the metadata, else 32.
    max_size: bytes of tensors per part; a part holds at least one tensor, however large.
    counts: the number of tensors of each part, instead of max_size.
    progress: called with the bytes of each write.

    Keys that describe the file (general.alignment, split.*) are rewritten. The files appear under their names
    when all bytes are on the disk; an error or Ctrl-C before that leaves the old files. RequestError where
    the file would be malformed or can't be written; ValueError where a tensor yields a wrong number of bytes.
    """
    layouts = lay_out(path, metadata, tensors, alignment=alignment, max_size=max_size, counts=counts)
    write_layouts(layouts, progress)
    return [layout.path for layout in layouts]


def fill_gguf(
    descriptor: int,
    path: Path,
    metadata: Mapping[str, Value | Typed | Sequence[Any]],
    tensors: Iterable[TensorSource],
) -> None:
    """Writes one file into an open descriptor, replacing its contents, and closes it. path: names the file in
    errors. RequestError where writing fails.
    """
    try:
        with os.fdopen(descriptor, "wb") as file:
            (layout,) = lay_out(path, metadata, tensors)
            file.seek(0)
            file.truncate()
            _write(layout, None, None, file)
    except OSError as error:
        raise RequestError(f"{path}: can't be written: {error.strerror or error}; check the disk") from None


def write_layouts(
    layouts: Sequence[FileLayout], progress: Callable[[int], None] | None = None, mode: int | None = None
) -> None:
    """Writes these files, all or none. mode: their permissions; None: the default ones."""
    replace_files([(layout.path, partial(_write, layout, progress, mode)) for layout in layouts])


def lay_out(
    path: str | Path,
    metadata: Mapping[str, Value | Typed | Sequence[Any]],
    tensors: Iterable[TensorSource],
    *,
    alignment: int | None = None,
    max_size: int | None = None,
    counts: Sequence[int] | None = None,
) -> list[FileLayout]:
    """The exact layout of the files that write_gguf would write. No tensor data is read."""
    path = Path(path)
    values = _typed_values(metadata)
    alignment = _choose_alignment(values, alignment)
    sized = _check_tensors(path, tensors)
    parts = _cut(sized, alignment, max_size) if counts is None else _cut_at(sized, counts)
    if len(parts) > PARTS_LIMIT:
        raise RequestError(
            f"{path}: expected at most {PARTS_LIMIT} parts, got {len(parts)}; give a larger size"
        )
    return [_lay_out(path, index, parts, values, alignment) for index in range(len(parts))]


def lay_out_part(
    path: Path, values: Mapping[str, Typed], tensors: Iterable[TensorSource], alignment: int
) -> FileLayout:
    """The layout of one file with exactly these keys, including split.*."""
    sized = _check_tensors(path, tensors)
    return FileLayout(path, _pack_header(path, dict(values), sized, alignment), tuple(sized), alignment)


def _typed_values(metadata: Mapping[str, Value | Typed | Sequence[Any]]) -> dict[str, Typed]:
    if isinstance(metadata, Metadata):
        return {key: metadata.typed(key) for key in metadata}
    return {key: typed(value) for key, value in metadata.items()}


def _choose_alignment(values: dict[str, Typed], alignment: int | None) -> int:
    found = values.get(ALIGNMENT_KEY)
    if alignment is None:
        alignment = found.value if found is not None and isinstance(found.value, int) else DEFAULT_ALIGNMENT
    try:
        check_alignment(alignment)
    except Violation as reason:
        raise RequestError(f"{ALIGNMENT_KEY}: {reason}") from None
    if found is not None or alignment != DEFAULT_ALIGNMENT:
        values[ALIGNMENT_KEY] = Typed(ValueType.UINT32, alignment)
    return alignment


def _check_tensors(path: Path, tensors: Iterable[TensorSource]) -> list[tuple[TensorSource, int]]:
    sized: list[tuple[TensorSource, int]] = []
    names: set[str] = set()
    for tensor in tensors:
        try:
            decode_name(encode_text(tensor.name), NAME_LIMIT)
            if len(tensor.shape) > DIMS_LIMIT:
                raise Violation(f"expected at most {DIMS_LIMIT} dimensions, got {len(tensor.shape)}")
            if tensor.name in names:
                raise Violation("expected each name once, got it again")
            sized.append((tensor, check_size(tensor.shape, find_type(tensor.type_id))))
        except Violation as reason:
            raise RequestError(f"{path}: tensor {tensor.name!a}: {reason}") from None
        names.add(tensor.name)
    return sized


def _cut(
    sized: list[tuple[TensorSource, int]], alignment: int, max_size: int | None
) -> list[list[tuple[TensorSource, int]]]:
    """Splits the tensors in order: a new part begins where the next tensor would exceed max_size."""
    parts: list[list[tuple[TensorSource, int]]] = [[]]
    used = 0
    for tensor, nbytes in sized:
        padded = nbytes + pad(nbytes, alignment)
        if max_size is not None and parts[-1] and used + padded > max_size:
            parts.append([])
            used = 0
        parts[-1].append((tensor, nbytes))
        used += padded
    return parts


def _cut_at(
    sized: list[tuple[TensorSource, int]], counts: Sequence[int]
) -> list[list[tuple[TensorSource, int]]]:
    """Splits the tensors in order into parts of counts[i] tensors."""
    if sum(counts) != len(sized) or min(counts, default=0) < 0:
        raise ValueError(f"expected parts of {len(sized)} tensors in all, got {list(counts)}")
    ends = list(itertools.accumulate(counts))
    return [sized[end - count : end] for count, end in zip(counts, ends, strict=True)]


def _lay_out(
    path: Path,
    index: int,
    parts: list[list[tuple[TensorSource, int]]],
    values: dict[str, Typed],
    alignment: int,
) -> FileLayout:
    own = {key: value for key, value in values.items() if index == 0 or key == ALIGNMENT_KEY}
    for key in SPLIT_KEYS:
        own.pop(key, None)
    if len(parts) > 1:
        own[NUMBER_KEY] = Typed(ValueType.UINT16, index)
        own[COUNT_KEY] = Typed(ValueType.UINT16, len(parts))
        own[TENSORS_KEY] = Typed(ValueType.INT32, sum(map(len, parts)))
        path = part_path(path.with_suffix("") if path.suffix == ".gguf" else path, index, len(parts))
    header = _pack_header(path, own, parts[index], alignment)
    return FileLayout(path, header, tuple(parts[index]), alignment)


def _pack_header(
    path: Path, values: dict[str, Typed], sized: list[tuple[TensorSource, int]], alignment: int
) -> bytes:
    header = bytearray(MAGIC + U32.pack(VERSION) + U64.pack(len(sized)) + U64.pack(len(values)))
    for key, value in values.items():
        try:
            decode_name(encode_text(key), KEY_LIMIT)
        except Violation as reason:
            raise RequestError(f"{path}: key {key[:60]!a}: {reason}") from None
        header += _pack_text(key) + pack(value)
    offset = 0
    for tensor, nbytes in sized:
        header += _pack_text(tensor.name) + U32.pack(len(tensor.shape))
        header += b"".join(U64.pack(dim) for dim in reversed(tensor.shape))
        header += U32.pack(tensor.type_id) + U64.pack(offset)
        offset += nbytes + pad(nbytes, alignment)
    if max(len(sized), len(values)) > COUNT_LIMIT or len(header) > HEADER_LIMIT:
        limits = f"{COUNT_LIMIT} keys, {COUNT_LIMIT} tensors and {HEADER_LIMIT} bytes of both"
        raise RequestError(f"{path}: expected at most {limits}, got more; write less metadata")
    return bytes(header) + bytes(pad(len(header), alignment))


def _pack_text(text: str) -> bytes:
    raw = encode_text(text)
    return U64.pack(len(raw)) + raw


def _write(
    layout: FileLayout, progress: Callable[[int], None] | None, mode: int | None, file: IO[bytes]
) -> None:
    if mode is not None and hasattr(os, "fchmod"):  # Windows has none
        os.fchmod(file.fileno(), mode)
    file.write(layout.header)
    for tensor, nbytes in layout.tensors:
        written = 0
        for piece in tensor.pieces():
            written += file.write(piece)
            if progress is not None:
                progress(piece.nbytes)
        if written != nbytes:
            raise ValueError(f"tensor {tensor.name}: expected {nbytes} bytes, got {written}")
        file.write(bytes(pad(nbytes, layout.alignment)))
