"""Histogram of a tensor's values: counts in equal bins, mean and deviation, and the number of NaNs.

The first pass finds the range, the second counts. Only one chunk of rows is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np

from satchel.errors import ModelError, RequestError
from satchel.formats.gguf.reader import GGUF
from satchel.quant import FORMATS
from satchel.quant.format import F32

CHUNK = 1 << 21  # elements decoded at a time
MOST_BINS = 1 << 12


@dataclass(frozen=True, slots=True)
class TensorHistogram:
    """The distribution of one tensor's decoded values."""

    name: str
    format: str
    shape: tuple[int, ...]
    count: int  # of all values
    nan: int  # NaN and infinite values, which no bin and no moment includes
    zeros: int
    least: float
    largest: float
    mean: float
    deviation: float
    edges: tuple[float, ...]  # n + 1 edges of n bins; the last bin includes its upper edge
    counts: tuple[int, ...]


def histogram(gguf: GGUF, name: str, bins: int = 40) -> TensorHistogram:
    """The histogram of a tensor's decoded values. RequestError without such a tensor or a finite value."""
    if not 1 <= bins <= MOST_BINS:
        raise RequestError(f"bins: expected 1 to {MOST_BINS}, got {bins}")
    info = gguf.tensors.get(name)
    if info is None:
        near = next((other for other in gguf.tensors if name in other), None)
        hint = f"; is {near} meant?" if near else ""
        raise RequestError(f"{gguf.path}: tensor {name[:80]!a}: expected one of the file's, got none{hint}")
    count, nan, zeros, total, square = 0, 0, 0, 0.0, 0.0
    low, high = np.inf, -np.inf
    for values in _values(gguf, name):
        finite = values[np.isfinite(values)].astype(np.float64)
        count, nan = count + values.size, nan + values.size - finite.size
        if finite.size:
            zeros += finite.size - int(np.count_nonzero(finite))
            total, square = total + float(finite.sum()), square + float(np.square(finite).sum())
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    if count == nan:
        raise RequestError(
            f"{gguf.path}: tensor {name}: expected numbers, got {count} values and none of them"
        )
    mean = total / (count - nan)
    edges = _edges(low, high, bins)
    counts = np.zeros(len(edges) - 1, np.int64)
    for values in _values(gguf, name):
        counts += np.histogram(values[np.isfinite(values)].astype(np.float64), edges)[0]
    deviation = sqrt(max(0.0, square / (count - nan) - mean * mean))
    return TensorHistogram(
        name, info.format, info.shape, count, nan, zeros, low, high, mean, deviation,
        tuple(edges.tolist()), tuple(counts.tolist()),
    )  # fmt: skip


def _edges(low: float, high: float, bins: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Edges of equal bins; one bin around the value where all values are equal."""
    if low == high:
        half = abs(low) / 2 or 0.5
        return np.array([low - half, high + half])
    edges = low + (high - low) * (np.arange(bins + 1) / bins)
    edges[-1] = high
    # A range near the precision of float64 gives duplicate edges, hence fewer bins.
    return np.unique(edges)


def _values(gguf: GGUF, name: str) -> Iterator[F32]:
    info = gguf.tensors[name]
    fmt = FORMATS.get(info.format)
    if fmt is None:
        raise ModelError(
            f"{gguf.path}: tensor {name}: expected a format that this version decodes, got {info.format}"
        )
    row = info.shape[-1] if info.shape else 1
    row_bytes = fmt.row_bytes(row)
    if info.nbytes:
        for chunk in gguf.chunks(name, max(1, CHUNK // row) * row_bytes):
            yield fmt.decode(np.frombuffer(chunk, fmt.dtype).reshape(-1, row // fmt.block))
