"""Opens a GGUF file, or the set of files it is a part of: metadata as Python, tensors as views of the mapped
file.

Everything was checked when open_gguf returns: each tensor lies within its file, and C is given no unchecked
number.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
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
from satchel.quant import BY_ID

Bytes = npt.NDArray[np.uint8]
Stamp = tuple[int, ...]  # device, inode, size, times of the last write and of the last change of the inode
CHUNK = 1 << 23


class Part:
    """One open file: header, descriptor and mapping. Closing keeps the mapping alive as long as views of it
    are."""

    def __init__(self, file: Path | OpenFile, index: int = 0, judge: Judge = STRICT) -> None:
        self.path = path = file.path if isinstance(file, OpenFile) else file
        self._fd = -1
        self._memory: Bytes | None = None
        try:
            self._fd = (file if isinstance(file, OpenFile) else open_file(file)).take()
            info = os.fstat(self._fd)
            if not stat.S_ISREG(info.st_mode):
                raise ModelError(
                    f"{path}: expected a regular file, got {_kind(info.st_mode)}; give a GGUF file"
                )
            self.size, self.stamp = info.st_size, stamp_of(info)
            self.header: Header = parse_header(self._fd, path, self.size, index, judge)
            self.mmap = mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ)
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
        return self._fd < 0

    def view(self, offset: int, nbytes: int) -> Bytes:
        """Bytes of the mapped file, read-only; touching them is safe while `check` holds."""
        self.check()
        if self._memory is None:
            raise ValueError(f"{self.path}: closed")
        return self._memory[offset : offset + nbytes]

    def check(self) -> None:
        """ModelError where the file is shorter than when it was opened: touching its end would kill the
        process."""
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
        """Whether the open file was written since, or its times or place were changed. ModelError where the
        system cannot tell."""
        return not self.closed and stamp_of(self._info()) != self.stamp

    def _info(self) -> os.stat_result:
        try:
            return os.fstat(self._fd)
        except OSError as error:
            raise ModelError(f"{self.path}: can't be read: {error.strerror}; check the disk") from None

    def read_into(self, offset: int, out: memoryview) -> None:
        """Copy bytes of the file by read calls: a file that shrinks meanwhile gives ModelError, never a
        signal."""
        if self.closed:
            raise ValueError(f"{self.path}: closed")
        done = 0
        while done < len(out):
            try:
                count = os.preadv(self._fd, [out[done : done + (1 << 30)]], offset + done)
            except OSError as error:
                at = f"{self.path}: byte {offset + done}"
                raise ModelError(f"{at}: can't be read: {error.strerror}; check the disk") from None
            if not count:
                reason = f"expected data up to byte {offset + len(out)}, got the end at {offset + done}"
                raise ModelError(f"{self.path}: file: {reason}; {TRUNCATED}")
            done += count

    def forget(self, offset: int, nbytes: int) -> None:
        """Gives the system's copy of these bytes back, where no process has them mapped: they are read from
        the disk again when they are asked for. Without effect where the system has no such call."""
        if hasattr(os, "posix_fadvise") and not self.closed:
            with suppress(OSError):
                os.posix_fadvise(self._fd, offset, nbytes, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        self._memory = None
        if self._fd >= 0:
            with suppress(OSError):  # only read from: there is nothing to lose
                os.close(self._fd)
            self._fd = -1
        if hasattr(self, "mmap"):
            with suppress(BufferError):  # where views live on, the last of them unmaps the file
                self.mmap.close()
            del self.mmap


def stamp_of(info: os.stat_result) -> Stamp:
    """Which file it is, and its state: two opens with one stamp see the same bytes. A writer can set back the
    time of the last write, but not that of the inode's last change.
    """
    return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a pipe",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a disk",
    }
    return kinds.get(stat.S_IFMT(mode), "a special file")


class GGUF:
    """A model file that is open; made by open_gguf.

    metadata: the first part's. tensors: in file order, over all parts. warnings: lines about what is odd, yet
    readable.

    A file that another process shortens is the one thing that no check up front can rule out. What holds: the
    metadata is a private copy; read_into and chunks raise ModelError; raw, array and check() raise ModelError
    where the file is already shorter. What does not: memory of a view that is touched after the cut, between
    two checks, gives SIGBUS, which Python can't turn into an error. So code that copies weights uses
    read_into or copy, and code that computes on views either calls check() before each step or is a device
    that notices the loss itself (cext/cpu/mapped.c).
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
        """The tensor's bytes [..., row bytes] as a read-only view of the mapped file.

        Aligned to what the file says (general.alignment), usually 32, but 1 is legal: C must not assume more.
        """
        info = self.info(name)
        kind = TENSOR_TYPES[info.type_id]
        row_bytes = (info.shape[-1] if info.shape else 1) // kind.block * kind.size
        return self.parts[info.part].view(info.offset, info.nbytes).reshape(*info.shape[:-1], row_bytes)

    def array(self, name: str) -> npt.NDArray[Any]:
        """The tensor as numbers [...] or blocks [..., row / block] of its format's dtype, a view as `raw`."""
        return self._shaped(name, self.raw(name))

    def copy(self, name: str) -> npt.NDArray[Any]:
        """What array() gives, of bytes copied by read calls: a file that is cut meanwhile is ModelError."""
        info = self.info(name)
        if not info.nbytes:
            return self.array(name)
        data = np.empty(info.nbytes, np.uint8)
        self.read_into(name, data)
        return self._shaped(name, data.reshape(*info.shape[:-1], -1))

    def _shaped(self, name: str, raw: Bytes) -> npt.NDArray[Any]:
        """The bytes [..., row bytes] as array() gives them."""
        info = self.info(name)
        fmt = BY_ID.get(info.type_id)
        dtype = PLAIN_DTYPES.get(info.format) if fmt is None else fmt.dtype
        if dtype is None:
            reason = f"expected a format that this version decodes, got {info.format}"
            raise ModelError(f"{self.path}: tensor {name}: {reason}; quantize the model to another type")
        view: npt.NDArray[Any] = raw.view(dtype)
        return view if info.shape else view.reshape(())

    def read_into(self, name: str, out: npt.NDArray[Any]) -> None:
        """Copy the tensor's bytes into a contiguous array of `nbytes` by read calls, not through the
        mapping."""
        info = self.info(name)
        if out.nbytes != info.nbytes or not out.flags.c_contiguous:
            raise ValueError(f"{name}: expected a contiguous array of {info.nbytes} bytes, got {out.nbytes}")
        self.parts[info.part].read_into(info.offset, out.reshape(-1).view(np.uint8).data)

    def chunks(self, name: str, size: int = CHUNK) -> Iterator[memoryview]:
        """The tensor's bytes in order, in pieces of up to `size`, read as by read_into. A piece is valid
        until the next."""
        info = self.info(name)
        buffer = memoryview(bytearray(min(size, info.nbytes)))
        for start in range(0, info.nbytes, size):
            piece = buffer[: min(size, info.nbytes - start)]
            self.parts[info.part].read_into(info.offset + start, piece)
            yield piece

    @property
    def stamps(self) -> tuple[Stamp, ...]:
        """Of each part when it was opened."""
        return tuple(part.stamp for part in self.parts)

    def check_unchanged(self) -> None:
        """ModelError where a part was written since it was opened: what was read of it is of two files."""
        for part in self.parts:
            if part.changed:
                raise ModelError(
                    f"{part.path}: expected the file as when it was opened, got one that was changed while it"
                    " was loaded: load it again when nobody writes to it"
                )

    def check(self) -> None:
        """ModelError where a part became shorter since it was opened; about a microsecond a part."""
        for part in self.parts:
            part.check()

    def close(self) -> None:
        """Close the files; views that were handed out stay valid."""
        for part in self.parts:
            part.close()

    def __enter__(self) -> GGUF:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_gguf(file: str | Path | OpenFile, judge: Judge = STRICT) -> GGUF:
    """Open a GGUF file (v2 or v3, little-endian); any part of a split set opens the set. Of a file that is
    open already its descriptor is taken, and it must be the whole of its set.

    ModelError where the file is missing, no regular file, malformed, or its set is incomplete. Time and
    memory are linear in the header's bytes; tensor data is mapped and not read. A judge that goes on gets
    what can be read of a malformed file: its tensors may lie outside of it.
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
    """All parts of a set; a judge that goes on hears of every part that can't be opened before it ends."""
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
