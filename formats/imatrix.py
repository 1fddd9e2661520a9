"""Importance matrices: per weight matrix the mean squares of its input columns, and optionally the products
of all pairs of columns (the Hessian for GPTQ). Reads and writes llama.cpp's GGUF format and its older .dat.

The products are additional tensors <weight>.in_products: the upper triangle of sum(x x^T), row by row from
the diagonal on. Other readers ignore them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import IO

import numpy as np
import numpy.typing as npt

from satchel.errors import ModelError
from satchel.formats.gguf import GGUF, Metadata, TensorSource, open_gguf, write_gguf
from satchel.formats.gguf.atomic import replace_files
from satchel.formats.gguf.values import StringArray, Typed, Value
from satchel.formats.resource import Resource
from satchel.quant.calibration.gptq import Hessian, prepare
from satchel.quant.format import F32

F64 = npt.NDArray[np.float64]
SQUARES, COUNTS, PRODUCTS = ".in_sum2", ".counts", ".in_products"
# entries "a=b": weight a has the same inputs, and so the products, of weight b
SHARED = "satchel.imatrix.shared"
KEPT = 2  # Hessians kept in memory after use: gate and up share one, but may not be adjacent in a file
I32 = struct.Struct("<i")


@dataclass(slots=True)
class Sums:
    """The statistics of one input, which all of `weights` multiply."""

    weights: tuple[str, ...]
    squares: F64  # (1 or experts, K): sum of x^2
    rows: F64  # (1 or experts,): number of rows x
    products: F32 | None = None  # (K, K): sum of x x^T over all rows of all experts; None: not collected


@dataclass(frozen=True, slots=True)
class Origin:
    """The calibration text."""

    datasets: tuple[str, ...]  # names of the texts
    chunks: int  # windows
    chunk_size: int  # tokens per window


class Importance(Resource):
    """An open importance matrix. Products are read on demand. Thread-safe.

    weights: names of the matrices with data, in order.
    """

    def __init__(
        self,
        path: Path,
        means: Mapping[str, F32],
        origin: Origin,
        gguf: GGUF | None,
        shared: Mapping[str, str],
    ) -> None:
        self.path, self.origin, self.weights = path, origin, tuple(means)
        self._means, self._gguf, self._shared = means, gguf, shared
        self._made: dict[str, Hessian] = {}
        self._lock = Lock()

    @property
    def has_products(self) -> bool:
        return any(self._holder(name) is not None for name in self.weights)

    def diagonal(self, name: str) -> F32 | None:
        """The mean squares of this weight's input columns: (K,), or (experts * K,) for a stack; None: no
        data. An expert without tokens has ones.
        """
        found = self._means.get(name)
        return None if found is None else found.reshape(-1)

    def hessian(self, name: str) -> Hessian | None:
        """The Hessian of the inputs for quant.gptq.encode_matrix; None where the file has squares only.
        ModelError where the products are damaged.
        """
        holder = self._holder(name)
        if holder is None:
            return None
        with self._lock:
            if holder not in self._made:
                self._made[holder] = self._read_products(holder)
                for old in list(self._made)[:-KEPT]:
                    del self._made[old]
            return self._made[holder]

    def _holder(self, name: str) -> str | None:
        holder = self._shared.get(name, name)
        there = self._gguf is not None and holder + PRODUCTS in self._gguf.tensors
        found = there and name in self._means and holder in self._means
        return holder if found else None

    def _read_products(self, name: str) -> Hessian:
        gguf = self._gguf
        if gguf is None:
            raise ValueError(f"{self.path}: closed")
        where = f"{self.path}: tensor {name}{PRODUCTS}"
        width = self._means[name].shape[1]
        info = gguf.info(name + PRODUCTS)
        if info.format != "f32" or info.shape != (width * (width + 1) // 2,):
            wanted = f"f32 and {width * (width + 1) // 2} numbers for a row of {width}"
            raise ModelError(f"{where}: expected {wanted}, got {info.format} and {info.shape}; make it again")
        packed = np.empty(info.shape, np.float32)
        gguf.read_into(info.name, packed)
        rows = float(gguf.copy(name + COUNTS).sum(dtype=np.float64))
        try:
            return prepare(unpack_upper(packed, width) / max(rows, 1.0))
        except ValueError as error:
            raise ModelError(f"{where}: {error}; make it again") from None

    def close(self) -> None:
        self._made.clear()
        if self._gguf is not None:
            self._gguf.close()


def pack_upper(matrix: F32) -> Iterator[F32]:
    """The rows of the upper triangle of a (K, K) matrix, each from the diagonal on."""
    for i in range(len(matrix)):
        yield matrix[i, i:]


def unpack_upper(packed: F32, width: int) -> F32:
    """The symmetric (width, width) matrix from the concatenated rows of pack_upper."""
    out = np.empty((width, width), np.float32)
    at = 0
    for i in range(width):
        row = packed[at : at + width - i]
        out[i, i:] = row
        out[i:, i] = row
        at += width - i
    return out


def open_importance(path: str | Path) -> Importance:
    """Opens a GGUF or .dat file. ModelError where it is neither, or damaged."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(f"{path}: can't be read: {error.strerror or error}; check the path") from None
    return _open_gguf(path) if magic == b"GGUF" else _open_dat(path)


def _open_gguf(path: Path) -> Importance:
    gguf = open_gguf(path)
    try:
        names = [n.removesuffix(SQUARES) for n in gguf.tensors if n.endswith(SQUARES)]
        if not names:
            reason = f"expected tensors named <weight>{SQUARES}, got none of {len(gguf.tensors)}"
            raise ModelError(f"{path}: {reason}; make importance data by `satchel imatrix`")
        means = {name: _means(gguf, name) for name in names}
        meta = gguf.metadata
        chunks, size = (meta.get_uint(f"imatrix.{key}", 0) for key in ("chunk_count", "chunk_size"))
        origin = Origin(_texts(meta, "imatrix.datasets"), chunks, size)
        pairs = (pair.partition("=") for pair in _texts(meta, SHARED))
        shared = {weight: holder for weight, _, holder in pairs if weight in means and holder in means}
        return Importance(path, means, origin, gguf, shared)
    except BaseException:
        gguf.close()
        raise


def _texts(meta: Metadata, key: str) -> tuple[str, ...]:
    found = meta.get(key, ())
    return tuple(found) if isinstance(found, StringArray) else ()


def _means(gguf: GGUF, name: str) -> F32:
    where = f"{gguf.path}: tensor {name}"
    for suffix in (SQUARES, COUNTS):
        if gguf.info(name + suffix).format != "f32":
            got = gguf.info(name + suffix).format
            raise ModelError(f"{where}{suffix}: expected f32, got {got}; make it again")
    with np.errstate(invalid="ignore"):  # a NaN of the signalling kind; _checked refuses them all
        sums, counts = (gguf.copy(name + s).astype(np.float64).reshape(-1) for s in (SQUARES, COUNTS))
    if not counts.size or not sums.size or sums.size % counts.size:
        reason = f"expected whole rows for {counts.size} counts, got {sums.size} sums"
        raise ModelError(f"{where}: {reason}; make it again")
    return _checked(where, sums.reshape(counts.size, -1), counts)


def _checked(where: str, sums: F64, counts: F64) -> F32:
    """Means (n, K) of sums (n, K) over counts (n,); ones where the count is 0."""
    if not (np.isfinite(sums) & (sums >= 0)).all() or not (np.isfinite(counts) & (counts >= 0)).all():
        raise ModelError(f"{where}: expected finite numbers from 0, got others; make it again")
    means = np.ones(sums.shape)
    np.divide(sums, counts[:, None], out=means, where=counts[:, None] > 0)
    return np.minimum(means, np.finfo(np.float32).max).astype(np.float32)


def write_importance(path: str | Path, found: Sequence[Sums], origin: Origin) -> None:
    """Writes the GGUF format atomically."""
    tensors: list[TensorSource] = []
    shared: list[str] = []
    for sums in found:
        for name in sums.weights:
            squares, counts = sums.squares.astype(np.float32), sums.rows.astype(np.float32)
            tensors.append(TensorSource(name + SQUARES, squares.shape, "f32", squares))
            tensors.append(TensorSource(name + COUNTS, (len(counts), 1), "f32", counts))
        if sums.products is not None:
            holder, *others = sums.weights
            width = len(sums.products)
            size = (width * (width + 1) // 2,)
            tensors.append(TensorSource(holder + PRODUCTS, size, "f32", partial(pack_upper, sums.products)))
            shared += [f"{name}={holder}" for name in others]
    metadata: dict[str, Value | Typed | Sequence[str]] = {
        "general.type": "imatrix",
        "imatrix.datasets": list(origin.datasets),
        "imatrix.chunk_count": origin.chunks,
        "imatrix.chunk_size": origin.chunk_size,
    }
    write_gguf(path, {**metadata, **({SHARED: shared} if shared else {})}, tensors)


def write_dat(path: str | Path, found: Sequence[Sums], origin: Origin) -> None:
    """Writes the older .dat format, without products, atomically."""
    replace_files([(Path(path), partial(_write_dat, found, origin))])


def _write_dat(found: Sequence[Sums], origin: Origin, file: IO[bytes]) -> None:
    file.write(I32.pack(sum(len(sums.weights) for sums in found)))
    for sums in found:
        calls = -(-int(sums.rows.max()) // max(1, origin.chunk_size))
        rows = sums.rows[:, None]
        means = np.divide(sums.squares, rows, out=np.ones(sums.squares.shape), where=rows > 0)
        for name in sums.weights:
            raw = name.encode()
            file.write(I32.pack(len(raw)) + raw + I32.pack(calls) + I32.pack(means.size))
            file.write((means * calls).astype("<f4").tobytes())
    text = ", ".join(origin.datasets).encode()
    file.write(I32.pack(origin.chunks) + I32.pack(len(text)) + text)


class _Dat:
    """The bytes of a .dat that are left; what asks for more than there is, is refused before it is read."""

    def __init__(self, path: Path) -> None:
        self.path, self.data, self.at = path, path.read_bytes(), 0

    def take(self, count: int, what: str) -> bytes:
        if not 0 <= count <= len(self.data) - self.at:
            left = len(self.data) - self.at
            raise ModelError(
                f"{self.path}: byte {self.at}: expected {what} of at most {left} bytes, got {count}; "
                "this is no importance data, or it is cut"
            )
        self.at += count
        return self.data[self.at - count : self.at]

    def int(self, what: str) -> int:
        found: int = I32.unpack(self.take(4, what))[0]
        return found


def _open_dat(path: Path) -> Importance:
    dat = _Dat(path)
    count = dat.int("a number of entries")
    if not 0 < count <= len(dat.data) // 12:
        raise ModelError(
            f"{path}: expected importance data, GGUF or .dat, got {count} entries; make it again"
        )
    means: dict[str, F32] = {}
    for _ in range(count):
        name = dat.take(dat.int("a name's length"), "a name").decode("utf-8", errors="replace")
        calls = dat.int("a number of calls")
        size = dat.int("a number of values")
        with np.errstate(invalid="ignore"):
            sums = np.frombuffer(dat.take(4 * size, "values"), "<f4").astype(np.float64)
        if not size or calls < 0 or name in means:
            raise ModelError(
                f"{path}: {name!a}: expected values once, got {size}, calls {calls}; make it again"
            )
        means[name] = _checked(f"{path}: {name!a}", sums[None], np.array([max(1.0, float(calls))]))
    chunks, datasets = 0, tuple[str, ...]()
    if dat.at < len(dat.data):
        chunks = max(0, dat.int("a number of chunks"))
    if dat.at < len(dat.data):
        text = dat.take(dat.int("a name's length"), "a name").decode("utf-8", errors="replace")
        datasets = (text,) if text else ()
    return Importance(path, means, Origin(datasets, chunks, 0), None, {})
