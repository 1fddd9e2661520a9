"""Opens a GGUF file or a split set: metadata as Python values, tensors as views of the memory-mapped file.

When open_gguf returns, the header has been checked: each tensor lies within its file, so C code gets no
unchecked number.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from satchel.errors import ModelError
from satchel.formats.gguf.check import STRICT, Judge
from satchel.formats.gguf.cursor import TRUNCATED
from satchel.formats.gguf.header import Header, TensorInfo, parse_header
from satchel.formats.gguf.metadata import Metadata
from satchel.formats.gguf.opened import OpenFile, open_file, unreadable
from satchel.formats.gguf.splits import list_parts, merge_headers, warn_of_name
from satchel.formats.gguf.types import PLAIN_DTYPES, TENSOR_TYPES
from satchel.formats.resource import Resource
from satchel.quant import BY_ID

Bytes = npt.NDArray[np.uint8]
Stamp = tuple[int, ...]  # device, inode, size, times of the last write and of the last change of the inode
CHUNK = 1 << 23


class Part:
    """One open file: header, descriptor and mapping. After close() the mapping lives as long as
    views of it.
    """

    def __init__(self, file: Path | OpenFile, index: int = 0, judge: Judge = STRICT) -> None:
        self.path = path = file.path if isinstance(file, OpenFile) else file
        self._memory: Bytes | None = None
        self._file = OpenFile(path)
        try:
            self._file = OpenFile(path, file.take()) if isinstance(file, OpenFile) else open_file(file)
            info = self._file.regular("a GGUF file")
            self.size, self.stamp = info.st_size, stamp_of(info)
            self.header: Header = parse_header(self._file.descriptor, path, self.size, index, judge)
            self.mmap = mmap.mmap(self._file.descriptor, self.size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            self.close()
            raise unreadable(path, error) from None
        except BaseException:
            self.close()
            raise
        self._memory = np.frombuffer(self.mmap, np.uint8)

    @property
    def data_offset(self) -> int:
        return self.header.data_offset

    @property
    def closed(self) -> bool:
        return self._file.descriptor < 0

    def view(self, offset: int, nbytes: int) -> Bytes:
        """A read-only view of the mapped file. Reading it is safe as long as `check` passes."""
        self.check()
        if self._memory is None:
            raise ValueError(f"{self.path}: closed")
        return self._memory[offset : offset + nbytes]

    def check(self) -> None:
        """Raises ModelError where the file is shorter than when it was opened: reading its end
        gives SIGBUS.
        """
        if self.closed:
            raise ValueError(f"{self.path}: closed")
        size = self._info().st_size
        if size < self.size:
            raise ModelError(
                f"{self.path}: file: expected {self.size} bytes as when it was opened, got {size}; "
                "don't write to a model in use"
            )

    @property
    def changed(self) -> bool:
        """Whether the file's inode, size or times changed since it was opened. ModelError where
        fstat fails.
        """
        return not self.closed and stamp_of(self._info()) != self.stamp

    def _info(self) -> os.stat_result:
        try:
            return os.fstat(self._file.descriptor)
        except OSError as error:
            raise ModelError(f"{self.path}: can't be read: {error.strerror}; check the disk") from None

    def read_into(self, offset: int, out: memoryview) -> None:
        """Copies bytes of the file, as OpenFile does."""
        self._file.read_into(offset, out, TRUNCATED)

    def forget(self, offset: int, nbytes: int) -> None:
        """Drops these bytes from the page cache where no process has them mapped; a later read goes to the
        disk. No effect without posix_fadvise."""
        if hasattr(os, "posix_fadvise") and not self.closed:
            with suppress(OSError):
                os.posix_fadvise(self._file.descriptor, offset, nbytes, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        self._memory = None
        self._file.close()
        if hasattr(self, "mmap"):
            with suppress(BufferError):  # views exist: the file is unmapped when the last one is freed
                self.mmap.close()
            del self.mmap


def stamp_of(info: os.stat_result) -> Stamp:
    """Identity and state of a file: two opens with equal stamps see the same bytes. A writer can reset mtime,
    but not ctime.
    """
    return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


class GGUF(Resource):
    """An open model file, made by open_gguf.

    metadata: of the first part.
    tensors: in file order, over all parts.
    warnings: lines about oddities that do not prevent reading.

    Another process can truncate the file while it is open. Then the metadata stays valid, because it is a
    private copy; read_into and chunks raise ModelError; raw, array and check() raise ModelError where the
    file is already shorter. Reading a view after a truncation that no check has seen gives SIGBUS, which
    Python can't turn into an error. So code that copies weights uses read_into or copy, and code that
    computes on views either calls check() before each step or runs on a device that handles SIGBUS
    (cext/cpu/device/mapped.c).
    """

    def __init__(self, path: Path, parts: tuple[Part, ...], judge: Judge = STRICT) -> None:
        self.path, self.parts = path, parts
        self.metadata: Metadata
        headers = [p.header for p in parts]
        self.metadata, self.tensors = merge_headers([p.path for p in parts], headers, judge)
        self.warnings = tuple(line for part in parts for line in _warnings(part))

    def __repr__(self) -> str:
        return f"GGUF({str(self.path)!r}: {len(self.metadata)} keys, {len(self.tensors)} tensors)"

    @property
    def version(self) -> int:
        return self.parts[0].header.version

    @property
    def alignment(self) -> int:
        return self.parts[0].header.alignment

    def info(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            reason = f"expected it among the file's {len(self.tensors)}, got none"
            raise ModelError(f"{self.path}: tensor {name}: {reason}; convert the model again")
        return info

    def raw(self, name: str) -> Bytes:
        """The tensor's bytes (..., row bytes) as a read-only view of the mapped file.

        The view is aligned to the file's general.alignment. It is usually 32, but 1 is legal, so C code must
        not assume more.
        """
        info = self.info(name)
        kind = TENSOR_TYPES[info.type_id]
        row_bytes = (info.shape[-1] if info.shape else 1) // kind.block * kind.size
        return self.parts[info.part].view(info.offset, info.nbytes).reshape(*info.shape[:-1], row_bytes)

    def array(self, name: str) -> npt.NDArray[Any]:
        """The tensor as numbers (...) or as blocks (..., row / block) of its format's dtype; a view, as
        `raw`.
        """
        return self._shaped(name, self.raw(name))

    def copy(self, name: str) -> npt.NDArray[Any]:
        """As array(), but a copy made by read calls: ModelError where the file is truncated meanwhile."""
        info = self.info(name)
        if not info.nbytes:
            return self.array(name)
        data = np.empty(info.nbytes, np.uint8)
        self.read_into(name, data)
        return self._shaped(name, data.reshape(*info.shape[:-1], -1))

    def _shaped(self, name: str, raw: Bytes) -> npt.NDArray[Any]:
        """Reinterprets the bytes (..., row bytes) as the array of the tensor's dtype."""
        info = self.info(name)
        fmt = BY_ID.get(info.type_id)
        dtype = PLAIN_DTYPES.get(info.format) if fmt is None else fmt.dtype
        if dtype is None:
            reason = f"expected a format that this version decodes, got {info.format}"
            raise ModelError(f"{self.path}: tensor {name}: {reason}; quantize the model to another type")
        view: npt.NDArray[Any] = raw.view(dtype)
        return view if info.shape else view.reshape(())

    def read_into(self, name: str, out: npt.NDArray[Any]) -> None:
        """Copies the tensor's bytes into a contiguous array of `nbytes`, by read calls."""
        info = self.info(name)
        if out.nbytes != info.nbytes or not out.flags.c_contiguous:
            raise ValueError(f"{name}: expected a contiguous array of {info.nbytes} bytes, got {out.nbytes}")
        self.parts[info.part].read_into(info.offset, out.reshape(-1).view(np.uint8).data)

    def chunks(self, name: str, size: int = CHUNK) -> Iterator[memoryview]:
        """The tensor's bytes in pieces of up to `size`, by read calls. A piece is valid until
        the next one.
        """
        info = self.info(name)
        buffer = memoryview(bytearray(min(size, info.nbytes)))
        for start in range(0, info.nbytes, size):
            piece = buffer[: min(size, info.nbytes - start)]
            self.parts[info.part].read_into(info.offset + start, piece)
            yield piece

    @property
    def stamps(self) -> tuple[Stamp, ...]:
        """The stamp of each part when it was opened."""
        return tuple(part.stamp for part in self.parts)

    def check_unchanged(self) -> None:
        """Raises ModelError where a part was written since it was opened: reads before and after do not
        match.
        """
        for part in self.parts:
            if part.changed:
                raise ModelError(
                    f"{part.path}: expected the file as when it was opened, got one that was changed while it"
                    " was loaded: load it again when nobody writes to it"
                )

    def check(self) -> None:
        """Raises ModelError where a part was truncated since it was opened. Takes about 1 us per part."""
        for part in self.parts:
            part.check()

    def close(self) -> None:
        """Closes the files. Views stay valid."""
        for part in self.parts:
            part.close()


def open_gguf(file: str | Path | OpenFile, judge: Judge = STRICT) -> GGUF:
    """Opens a GGUF file (v2 or v3, little-endian); any part of a split set opens the whole set.

    file: a path, or an OpenFile, whose descriptor is taken; that must not be a part of a set.
    judge: one that lets the reader continue gets the readable rest of a malformed file, whose tensors may lie
    outside of the file.

    ModelError where the file is missing, not a regular file, malformed, or its set is incomplete. Time and
    memory are linear in the header's bytes; tensor data is mapped, not read.
    """
    path = file.path if isinstance(file, OpenFile) else Path(file)
    parts: list[Part] = []
    try:
        given = Part(file if isinstance(file, OpenFile) else path, judge=judge)
        parts.append(given)
        paths = list_parts(path, given.header.metadata)
        if len(paths) > 1 and isinstance(file, OpenFile):
            raise ModelError(f"{path}: expected one file, got one of a set of {len(paths)}; merge the set")
        if len(paths) > 1:
            given.close()
            parts = _open_set(paths, judge)
        return GGUF(path, tuple(parts), judge)
    except BaseException:
        for part in parts:
            part.close()
        raise


def _open_set(paths: list[Path], judge: Judge) -> list[Part]:
    """Opens all parts of a set. The judge gets an error for each part that can't be opened; then the first
    error ends the reading.
    """
    parts: list[Part] = []
    missing: ModelError | None = None
    try:
        for index, path in enumerate(paths):
            try:
                parts.append(Part(path, index, judge))
            except ModelError as error:
                missing = error
                judge.refuse(error)
        if missing is not None:
            raise missing
    except BaseException:
        for part in parts:
            part.close()
        raise
    return parts


def _warnings(part: Part) -> Iterator[str]:
    yield from warn_of_name(part.path, part.header.metadata)
    spare = part.size - part.header.end
    if spare >= part.header.alignment:
        yield f"{part.path}: {spare} bytes after the last tensor belong to nothing"
