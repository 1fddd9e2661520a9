"""Weights in the CPU's packed layout, panels (cext/cpu/weights/panel.h), in the model's file: `satchel build
--panels`. The C library maps them instead of packing at each start, and processes share their pages.

The matrices that the plans read packed become one tensor, satchel.panels, in the order of the plan's weights;
every other byte of the file's data stays, in order. The key satchel.panels holds the tensor list as it was,
and the pieces that the data was made of, so that undo() gives the file back bit for bit: each tensor is
unpacked again when it is packed, and compared.

Nothing of a format is stated here: packing matrices of one bit each shows where each bit goes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np

from satchel.errors import ModelError, RequestError
from satchel.formats.gguf import GGUF
from satchel.formats.gguf.atomic import replace_files
from satchel.formats.gguf.check import COUNT_LIMIT, HEADER_LIMIT
from satchel.formats.gguf.header import TensorInfo
from satchel.formats.gguf.splice import HeaderBytes, entry
from satchel.formats.gguf.types import U32, U64
from satchel.formats.gguf.values import Typed, encode_text
from satchel.quant import BY_ID
from satchel.runtime.aot.records import PANELS_KEY, as_value, section, sections_of
from satchel.runtime.device.device import WEIGHT, Device
from satchel.runtime.graph import Array
from satchel.runtime.plan import align_up

MAGIC = b"SATPAN01"
ROWS, LINE, WORD = 16, 64, 4  # rows of a panel; bytes of a line of 16 words, and of a word
COPY, UNPACK = range(2)  # kinds of pieces
AT_ONCE = 1 << 24  # bytes of a matrix that are packed, or copied, at a time
I8 = 24  # GGUF's number of the tensor's format
Progress = Callable[[int], None]

HEAD = np.dtype(
    [("magic", "S8"), ("size", "<u4"), ("crc", "<u4"), ("n_list", "<u4"), ("count", "<u4"),
     ("n_pieces", "<u4"), ("pad", "<u4")]
)  # fmt: skip
# COPY: `size` bytes at `at` of the file's data. UNPACK: matrices whose panels are at `at` of satchel.panels.
PIECE = np.dtype(
    [("kind", "<u4"), ("format", "<u4"), ("stack", "<i8"), ("rows", "<i8"), ("columns", "<i8"), ("at", "<u8"),
     ("size", "<u8")]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Matrices:
    """A stack of matrices (rows, columns). at: of its panels, within the tensor satchel.panels."""

    format: int  # GGUF's number
    stack: int
    rows: int
    columns: int
    at: int = 0

    @property
    def unit(self) -> tuple[int, int]:
        """Elements and bytes of a packing unit: a block, or as many elements as fill a word."""
        one = BY_ID[self.format]
        n = max(1, WORD // one.block_bytes)
        return one.block * n, one.block_bytes * n

    @property
    def row_bytes(self) -> int:
        elements, nbytes = self.unit
        return self.columns // elements * nbytes

    @property
    def panel_bytes(self) -> int:
        nbytes = self.unit[1]
        blocks = self.row_bytes // nbytes
        return align_up(ROWS * (nbytes % WORD) * blocks, LINE) + blocks * (nbytes // WORD) * LINE

    @property
    def packed_bytes(self) -> int:
        return self.stack * -(-self.rows // ROWS) * self.panel_bytes

    @property
    def nbytes(self) -> int:
        return self.stack * self.rows * self.row_bytes

    def parts(self) -> Iterator[tuple[Matrices, int]]:
        """Some rows of one matrix after another, with their place in the bytes of the file."""
        most = max(ROWS, AT_ONCE // self.row_bytes // ROWS * ROWS)
        for first in range(0, self.stack * self.rows, self.rows):
            for row in range(0, self.rows, most):
                rows = min(most, self.rows - row)
                yield Matrices(self.format, 1, rows, self.columns), (first + row) * self.row_bytes


def pack(device: Device, what: Matrices, data: bytes | bytearray) -> Array:
    """The panels (packed_bytes) uint8 of a part. ModelError where the device packs in another order."""
    size = device.packed(what.format, what.stack, what.rows, what.columns)
    if size != what.packed_bytes:
        raise ModelError(f"format {what.format}: this backend packs it in another order than panels")
    buffer = device.alloc(size, WEIGHT)
    try:
        buffer.pack(0, what.format, (what.stack, what.rows, what.columns), data)
        out = np.empty(size, np.uint8)
        buffer.read_into(0, out)
        return out
    finally:
        buffer.close()


class Unpacker:
    """The inverse of pack() for one format.

    bits: for each bit of a unit, its place among the unit's packed bits of a row; halves: whether a line has
    the first halves of 16 words before their second ones.
    """

    def __init__(self, device: Device, format: int) -> None:
        elements, nbytes = Matrices(format, 1, 1, 0).unit
        one = Matrices(format, 1, 8 * nbytes, elements)
        packed = pack(device, one, np.packbits(np.eye(8 * nbytes, dtype=bool), bitorder="little").tobytes())
        for self.halves in (False, True):
            found = np.unpackbits(self._ordered(one, packed)[:, 0], axis=-1, bitorder="little")[: 8 * nbytes]
            if (found.sum(0) == 1).all() and (found.sum(1) == 1).all():
                break
        else:
            raise ModelError(f"format {format}: its panels are no order of a row's bits")
        self.bits = found.argmax(1)
        whole = self.bits.reshape(-1, 8)
        # Bytes that stay bytes are moved as such, which is faster.
        self.bytes = whole[:, 0] // 8 if (whole == whole[:, :1] // 8 * 8 + np.arange(8)).all() else None

    def unpack(self, what: Matrices, packed: Array) -> Array:
        """The bytes of a part, (rows, row_bytes)."""
        ordered = self._ordered(what, packed)
        if self.bytes is not None:
            found = ordered[..., self.bytes]
        else:
            bits = np.unpackbits(ordered, axis=-1, bitorder="little")
            found = np.packbits(bits[..., self.bits], axis=-1, bitorder="little")
        return np.ascontiguousarray(found).reshape(len(ordered), -1)[: what.rows]

    def _ordered(self, what: Matrices, packed: Array) -> Array:
        """Panels as rows of units: (rows padded to 16, units, bytes), the tail of a unit before its words."""
        nbytes = what.unit[1]
        tail, words, units = nbytes % WORD, nbytes // WORD, what.row_bytes // nbytes
        panels = packed.reshape(-1, what.panel_bytes)
        n, head = len(panels), align_up(ROWS * tail * units, LINE)
        tails = panels[:, : ROWS * tail * units].reshape(n, units, ROWS, tail).transpose(0, 2, 1, 3)
        lines = panels[:, head:].reshape(n, units, words, LINE)
        if self.halves:
            lines = lines.reshape(n, units, words, 2, ROWS, 2).swapaxes(3, 4)
        lines = lines.reshape(n, units, words, ROWS, WORD).transpose(0, 3, 1, 2, 4)
        parts = (tails.reshape(n * ROWS, units, tail), lines.reshape(n * ROWS, units, WORD * words))
        return np.concatenate(parts, axis=-1)


class Panels:
    """Where the tensors of a file go when these of them are packed. names: in the order of the plan's
    weights.

    The new data is satchel.panels, the tensors that stay, then what stood between and behind the tensors.
    size: bytes of satchel.panels. list: the new tensor list. section: of the key satchel.panels.
    """

    def __init__(self, gguf: GGUF, head: HeaderBytes, names: Sequence[str]) -> None:
        self._gguf, self._head = gguf, head
        self.matrices: dict[str, Matrices] = {}
        self.size = 0
        for name in names:
            info = gguf.tensors[name]
            stack, rows, columns = (1, *info.shape)[-3:]
            self.matrices[name] = what = Matrices(info.type_id, stack, rows, columns, self.size)
            self.size = align_up(self.size + what.packed_bytes, LINE)
        infos = sorted(gguf.tensors.values(), key=lambda i: i.offset)
        if any(one.offset + one.nbytes > next.offset for one, next in pairwise(infos)):
            raise ModelError(f"{gguf.path}: tensors overlap: write the file anew with `satchel merge`")
        self._stay = [info for info in infos if info.name not in self.matrices]
        self._place(infos)

    def _place(self, infos: Sequence[TensorInfo]) -> None:
        """Gives every byte of the old data its place."""
        at, places = self.size, dict[str, int]()
        listed = [_listed(PANELS_KEY, (self.size // LINE, LINE), I8, 0)]
        for one in self._stay:
            at = places[one.name] = align_up(at, self._head.alignment)
            listed.append(_listed(one.name, one.shape, one.type_id, at))
            at += one.nbytes
        self.list, self._places, self._gaps = b"".join(listed), places, list[tuple[int, int]]()
        found: list[tuple[int, ...]] = []
        old = self._head.data
        whole: tuple[TensorInfo | None, ...] = (*infos, None)
        for info in whole:
            gap = (self._head.size if info is None else info.offset) - old
            if gap:
                found.append((COPY, 0, 0, 0, 0, at, gap))
                self._gaps.append((old, gap))
                at += gap
            if info is not None and info.name in self.matrices:
                m = self.matrices[info.name]
                found.append((UNPACK, m.format, m.stack, m.rows, m.columns, m.at, m.nbytes))
            elif info is not None:
                found.append((COPY, 0, 0, 0, 0, places[info.name], info.nbytes))
            old = old if info is None else info.offset + info.nbytes
        self.pieces, self.end = np.array(found, PIECE), at

    def section(self, pad: int) -> bytes:
        """pad: bytes behind it, which move the file's data to a multiple of 64."""
        head = np.zeros((), HEAD)
        head["magic"], head["n_list"], head["count"] = MAGIC, len(self._head.tensors), self._head.count
        head["n_pieces"], head["pad"] = len(self.pieces), pad
        return section(head, [self._head.tensors, self.pieces, bytes(pad)])

    def write(self, device: Device, file: IO[bytes], progress: Progress | None) -> None:
        """The data."""
        told = progress or (lambda n: None)
        done = 0
        unpackers: dict[int, Unpacker] = {}
        for name, what in self.matrices.items():
            file.write(bytes(what.at - done))
            if what.format not in unpackers:
                unpackers[what.format] = Unpacker(device, what.format)
            for part, at in what.parts():
                data = b"".join(_read(self._gguf, self._gguf.tensors[name].offset + at, part.nbytes))
                packed = pack(device, part, data)
                if unpackers[what.format].unpack(part, packed).tobytes() != data:
                    raise ModelError(f"{self._gguf.path}: {name}: its panels do not unpack to its bytes")
                file.write(packed.tobytes())
                told(part.nbytes)
            done = what.at + what.packed_bytes
        stay = [(self._places[info.name], info.offset, info.nbytes) for info in self._stay]
        for place, at, size in (*stay, *((None, *gap) for gap in self._gaps)):
            file.write(bytes(0 if place is None else place - done))
            for data in _read(self._gguf, at, size):
                file.write(data)
                told(len(data))
            done = (done if place is None else place) + size


def _listed(name: str, shape: Sequence[int], format: int, offset: int) -> bytes:
    """An entry of a tensor list; offset: from the begin of the data."""
    raw = encode_text(name)
    dims = b"".join(U64.pack(d) for d in reversed(shape))
    return U64.pack(len(raw)) + raw + U32.pack(len(shape)) + dims + U32.pack(format) + U64.pack(offset)


def _read(gguf: GGUF, start: int, size: int) -> Iterator[bytes]:
    """Bytes of the file, in pieces of at most AT_ONCE."""
    for at in range(start, start + size, AT_ONCE):
        piece = bytearray(min(AT_ONCE, start + size - at))
        gguf.parts[0].read_into(at, memoryview(piece))
        yield bytes(piece)


def write_with_panels(
    gguf: GGUF,
    target: Path,
    device: Device,
    panels: Panels,
    sections: Callable[[int], dict[str, Typed]],
    progress: Progress | None = None,
) -> int:
    """Writes the file with the panels and further sections, which are made of its checksum: their sizes do
    not depend on it. Gives the number of bytes.
    """
    if target.exists() and target.samefile(gguf.path):
        raise RequestError(f"{target}: expected another file than the one that is read")
    head = HeaderBytes(gguf)
    _drop(head, sections_of(head.entries))
    head.tensors, head.count = panels.list, head.count - len(panels.matrices) + 1
    for pad in (0, LINE // 2):
        head.entries[PANELS_KEY] = entry(PANELS_KEY, as_value(panels.section(pad)))
        added = {key: entry(key, value) for key, value in sections(head.checksum(())).items()}
        header = head.pack(head.entries | added)
        if len(header) % LINE == 0:
            break
    else:
        raise ModelError(f"{gguf.path}: general.alignment is no multiple of 32")
    if len(header) > HEADER_LIMIT or len(head.entries) + len(added) > COUNT_LIMIT:
        raise RequestError(
            f"{target}: expected a header of at most {HEADER_LIMIT:,} bytes, got {len(header):,}"
        )

    def fill(file: IO[bytes]) -> None:
        file.write(header)
        panels.write(device, file, progress)

    replace_files([(target, partial(fill))])
    return len(header) + panels.end


def _drop(head: HeaderBytes, keys: Collection[str]) -> None:
    head.entries = {key: raw for key, raw in head.entries.items() if key not in keys}


def undo_panels(gguf: GGUF, target: Path, device: Device, progress: Progress | None = None) -> int:
    """Writes the file as it was before it had panels; gives the number of bytes. ModelError where its section
    is damaged.
    """
    if target.exists() and target.samefile(gguf.path):
        raise RequestError(f"{target}: expected another file than the one that is read")
    head, info = HeaderBytes(gguf), gguf.tensors.get(PANELS_KEY)
    raw = np.asarray(gguf.metadata[PANELS_KEY]).tobytes()
    found = _read_section(raw)
    if found is None or info is None or info.type_id != I8:
        raise ModelError(f"{gguf.path}: {PANELS_KEY} is damaged: there is no way back from this file")
    head.count, head.tensors, pieces = found
    start = head.data
    for piece in pieces:
        packed = piece["kind"] == UNPACK
        size = _matrices(piece).packed_bytes if packed else int(piece["size"])
        most = info.nbytes if packed else head.size - start
        if int(piece["at"]) + size > most:
            raise ModelError(f"{gguf.path}: {PANELS_KEY} names bytes that are not there: it is damaged")
    _drop(head, {*sections_of(head.entries), PANELS_KEY})
    header = head.pack(head.entries)

    def fill(file: IO[bytes]) -> None:
        file.write(header)
        unpackers: dict[int, Unpacker] = {}
        for piece in pieces:
            if piece["kind"] == COPY:
                file.writelines(_read(gguf, start + int(piece["at"]), int(piece["size"])))
            else:
                _unpack_piece(gguf, device, unpackers, _matrices(piece), info.offset, file)
            if progress is not None:
                progress(int(piece["size"]))

    replace_files([(target, partial(fill))])
    return len(header) + int(pieces["size"].sum())


def _read_section(raw: bytes) -> tuple[int, bytes, Array] | None:
    """Count and bytes of the old tensor list, and the pieces; None where the section is damaged."""
    if len(raw) < HEAD.itemsize:
        return None
    head = np.frombuffer(raw, HEAD, 1)[0]
    at = HEAD.itemsize + -(-int(head["n_list"]) // 8) * 8
    end = at + PIECE.itemsize * int(head["n_pieces"])
    if head["magic"] != MAGIC or head["size"] != len(raw) or head["crc"] != zlib.crc32(raw[16:]):
        return None
    if end + int(head["pad"]) != len(raw):
        return None
    pieces = np.frombuffer(raw, PIECE, int(head["n_pieces"]), at)
    for piece in pieces:
        whole = piece["kind"] == COPY or (piece["kind"] == UNPACK and int(piece["format"]) in BY_ID)
        if not whole or min(int(piece[k]) for k in ("stack", "rows", "columns")) < 0:
            return None
        if piece["kind"] == UNPACK and (not piece["rows"] or _matrices(piece).nbytes != piece["size"]):
            return None
    return int(head["count"]), raw[HEAD.itemsize : HEAD.itemsize + int(head["n_list"])], pieces


def _matrices(piece: Array) -> Matrices:
    return Matrices(*(int(piece[name]) for name in ("format", "stack", "rows", "columns", "at")))


def _unpack_piece(
    gguf: GGUF, device: Device, unpackers: dict[int, Unpacker], what: Matrices, start: int, file: IO[bytes]
) -> None:
    if what.format not in unpackers:
        unpackers[what.format] = Unpacker(device, what.format)
    at = start + what.at
    for part, _ in what.parts():
        packed = np.frombuffer(b"".join(_read(gguf, at, part.packed_bytes)), np.uint8)
        file.write(unpackers[what.format].unpack(part, packed).tobytes())
        at += part.packed_bytes


__all__ = ["Panels", "undo_panels", "write_with_panels"]
