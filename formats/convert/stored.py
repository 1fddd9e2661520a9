"""Stored tensors of a checkpoint, independent of the container: rows are read on demand.

Type names are those of safetensors. A container's reader checks its tensors against the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from satchel.errors import ModelError
from satchel.formats.gguf.check import quote

Array = npt.NDArray[Any]

# A type that numpy lacks (BF16, FP8) is held as its bits.
DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("u1"),
}


@dataclass(frozen=True, slots=True)
class Stored:
    """shape: outermost dimension first. read(first, last): rows of the outermost dimension, in the type of
    DTYPES; of a scalar, read(0, 1) is [1]. where: the file, for errors.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    where: str
    read: Callable[[int, int], Array]

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    def all(self) -> Array:
        """The whole tensor as stored."""
        return self.read(0, self.rows).reshape(self.shape)

    def floats(self) -> npt.NDArray[np.float32]:
        """Every element [shape] as float32; for small tensors of float types."""
        values = self.all()
        if self.dtype == "BF16":
            return np.asarray((values.astype(np.uint32) << 16).view(np.float32))
        return values.astype(np.float32)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class Container:
    """The tensors of one or more files by name, and what closes them."""

    tensors: Mapping[str, Stored]
    closer: AbstractContextManager[Any]


def gather(
    files: Mapping[Path, set[str] | None], read: Callable[[Path], Mapping[str, Stored]]
) -> dict[str, Stored]:
    """The tensors of all files. ModelError where one is missing from its file, or is in two files."""
    found: dict[str, Stored] = {}
    for path, wanted in files.items():
        tensors = read(path)
        if wanted is not None and (missing := wanted - set(tensors)):
            raise ModelError(
                f"{path}: tensor {quote(min(missing))}: expected by the index ({len(missing)} such), got"
                " none; the shards are not of one checkpoint"
            )
        if twice := set(tensors) & set(found):
            name = min(twice)
            raise ModelError(
                f"{path}: tensor {quote(name)}: expected in one file, got it in {found[name].where} as well"
            )
        found.update(tensors)
    return found
