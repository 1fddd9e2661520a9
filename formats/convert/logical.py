"""Logical tensors of a checkpoint: rows of one block format, however they are stored.

A plain tensor is one stored array. A quantized tensor is stored as codes, scales and more; here it becomes
blocks with exactly the values of the checkpoint's own formula, unless its note says otherwise.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from satchel.errors import ModelError
from satchel.errors.threads import SafeThreadPool
from satchel.formats.convert.stored import Array, Stored
from satchel.quant import FORMATS, Format
from satchel.quant.format import F32

Rows = Callable[[int, int], Array]
CHUNK = 1 << 23  # bytes
THREADS = min(4, os.cpu_count() or 1)
# Exponent masks: all bits are set in NaN and infinity. Testing them is several times faster than decoding.
EXPONENTS = {"bf16": (np.uint16, 0x7F80), "f16": (np.uint16, 0x7C00), "f32": (np.uint32, 0x7F800000)}
PLAIN = {"BF16": "bf16", "F16": "f16", "F32": "f32", "F64": "f32"}


@dataclass(frozen=True, slots=True)
class Logical:
    """One logical tensor."""

    name: str
    shape: tuple[int, ...]  # outermost dimension first; all but the last make the rows
    format: str  # a name of satchel.quant.FORMATS
    open: Callable[[], Rows]  # starts reading; returns rows(first, last) -> blocks (last - first, K / block)
    tensors: tuple[str, ...]  # names of the stored tensors that it is made of
    where: str  # the file, for errors
    note: str = ""  # what was kept or lost of a quantized tensor
    checked: bool = False  # `open` checks already that the rows are finite

    @property
    def rows(self) -> int:
        return prod(self.shape[:-1])

    @property
    def fmt(self) -> Format:
        return FORMATS[self.format]

    @property
    def row_bytes(self) -> int:
        return self.fmt.row_bytes(self.shape[-1] if self.shape else 1)


def plain(stored: Stored) -> Logical:
    """A float tensor unchanged; float64 becomes float32. ModelError for another type or an empty tensor."""
    if stored.dtype not in PLAIN:
        wanted = ", ".join(PLAIN)
        raise ModelError(
            f"{stored.where}: {stored.name}: expected {wanted}, got {stored.dtype} without scales;"
            " a quantized checkpoint says how in config.json's quantization_config"
        )
    if 0 in stored.shape:
        raise ModelError(
            f"{stored.where}: {stored.name}: expected numbers, got the shape {list(stored.shape)}; the"
            " checkpoint"
            " is damaged"
        )
    return Logical(
        stored.name,
        stored.shape,
        PLAIN[stored.dtype],
        lambda: lambda first, last: _flat_rows(stored, first, last),
        (stored.name,),
        stored.where,
    )


def _flat_rows(stored: Stored, first: int, last: int) -> Array:
    """Rows of a tensor with its outer dimensions flattened. Reads only the outer slices that contain them."""
    if len(stored.shape) < 2:
        rows = stored.read(0, stored.rows).reshape(1, -1)[first:last]
    else:
        inner = prod(stored.shape[1:-1])
        outer = first // max(inner, 1)
        read = stored.read(outer, -(-last // max(inner, 1)))
        rows = read.reshape(-1, stored.shape[-1])[first - outer * inner : last - outer * inner]
    return rows.astype(np.float32) if stored.dtype == "F64" else rows


def retyped(tensor: Logical, target: str, note: str = "") -> Logical:
    """The tensor decoded and encoded in another format. ModelError where a value is not finite
    or overflows.
    """
    if target == tensor.format:
        return tensor
    encode = FORMATS[target].encode
    if encode is None:
        raise ValueError(f"{target} has no encoder")

    def open_rows() -> Rows:
        rows = tensor.open()
        return lambda first, last: encode(_finite(tensor, target, rows(first, last)), None)

    return replace(tensor, format=target, open=open_rows, note=note or tensor.note, checked=True)


def _finite(tensor: Logical, target: str, blocks: Array) -> F32:
    values = tensor.fmt.decode(blocks)
    most = float(np.abs(values).max(initial=0))
    where = f"{tensor.where}: {tensor.name}"
    if not np.isfinite(most):
        raise ModelError(f"{where}: expected finite numbers, got NaN or infinity; the checkpoint is damaged")
    if target in ("f16", "q8_0") and most > (65504 if target == "f16" else 65504 * 127):
        raise ModelError(f"{where}: numbers up to {most:.3g} overflow {target}; choose bf16 or f32")
    return values


def transposed(stored: Stored) -> Stored:
    """A matrix (K, N) as (N, K). It is read whole at the first access and freed after its last rows."""
    kept: list[Array] = []

    def read(first: int, last: int) -> Array:
        whole = kept[0] if kept else np.ascontiguousarray(stored.all().T)
        kept[:] = [] if last >= stored.shape[1] else [whole]
        return whole[first:last]

    return Stored(stored.name, stored.shape[::-1], stored.dtype, stored.where, read)


def pieces(tensor: Logical, size: int) -> Iterator[memoryview]:
    """The tensor's bytes in pieces of up to `size`, of whole rows where a row fits. ModelError where a value
    is NaN or infinite.

    Threads read and encode a few parts ahead of the consumer.
    """
    rows, each = tensor.open(), max(1, size // max(tensor.row_bytes, 1))
    spans = [(first, min(first + each, tensor.rows)) for first in range(0, tensor.rows, each)]
    with SafeThreadPool(min(THREADS, max(1, len(spans)))) as pool:
        ahead: deque[Future[memoryview]] = deque()
        for first, last in spans[:THREADS]:
            ahead.append(pool.submit(_part, tensor, rows, first, last))
        for first, last in [*spans[THREADS:], *[(0, 0)] * len(ahead)]:
            part = ahead.popleft().result()
            if last:
                ahead.append(pool.submit(_part, tensor, rows, first, last))
            for start in range(0, len(part), size):
                yield part[start : start + size]


def _part(tensor: Logical, rows: Rows, first: int, last: int) -> memoryview:
    blocks = rows(first, last)
    if not tensor.checked and not _is_finite(tensor.fmt, blocks):
        raise ModelError(
            f"{tensor.where}: {tensor.tensors[0]}: expected finite numbers, got NaN or infinity; the"
            " checkpoint is damaged"
        )
    return memoryview(np.ascontiguousarray(blocks).reshape(-1).view(np.uint8).data)


def _is_finite(fmt: Format, blocks: Array) -> bool:
    if fmt.name not in EXPONENTS:
        return bool(np.isfinite(fmt.decode(blocks)).all())
    kind, mask = EXPONENTS[fmt.name]
    exponents = np.ascontiguousarray(blocks).view(kind) & kind(mask)
    return not (exponents == mask).any()
