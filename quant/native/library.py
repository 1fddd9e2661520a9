"""The quantizer's loops in C: the library satchel_search, whose entries are named as the functions that
define them, and give their bits (cext/search/search.h).

Arrays go by their address and their shape, so they must be contiguous; the struct for each type of number has
a C type of its own, so an array of another type is a TypeError, not a wrong result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from satchel import cext

_ARRAYS = {
    np.dtype(np.float32): ("search_f32 *", "float[]"),
    np.dtype(np.float64): ("search_f64 *", "double[]"),
    np.dtype(np.uint8): ("search_u8 *", "uint8_t[]"),
    np.dtype(np.bool_): ("search_u8 *", "uint8_t[]"),
    np.dtype(np.int8): ("search_i8 *", "int8_t[]"),
}


@dataclass(frozen=True, slots=True)
class SearchLibrary:
    """The loops of one instruction set; none where `reason` says why."""

    name: str  # of the instruction set
    reason: str = ""
    table: Any = None

    def loop(self, name: str) -> Callable[..., None] | None:
        """The entry of this name, to be called with arrays; None where there is none."""
        entry = getattr(self.table, name, None) if self.table is not None else None
        return None if entry is None else functools.partial(_call, entry)


def search_file() -> Path | None:
    """The library's file; None where it was not built."""
    return cext.search_library()


@functools.cache
def search_library(instruction_set: str = "") -> SearchLibrary:
    """The library's loops for an instruction set, by default the best that this machine runs."""
    path = search_file()
    if path is None:
        return SearchLibrary(instruction_set, "it was not built")
    try:
        table = cext.open_library(path).search_entry(cext.SEARCH_HASH, instruction_set.encode())
    except (OSError, AttributeError) as error:
        return SearchLibrary(instruction_set, f"{path.name} cannot be opened: {error}")
    if not table:
        reason = f"{path.name} has no set {instruction_set!r} that runs here, or is of another build"
        return SearchLibrary(instruction_set, reason)
    return SearchLibrary(cext.ffi.string(table.set).decode(), "", table)


def _call(entry: Any, *arguments: Any) -> None:
    """Calls an entry without the interpreter's lock. MemoryError where it finds no memory."""
    if entry(*[_as_c(value) for value in arguments]):
        raise MemoryError("no memory for a search")


def _as_c(value: Any) -> Any:
    if value is None:
        return cext.ffi.NULL
    if not isinstance(value, np.ndarray):
        return value
    struct, elements = _ARRAYS[value.dtype]
    shape = (*value.shape, *[1] * (4 - value.ndim))
    return cext.ffi.new(struct, (cext.ffi.from_buffer(elements, value), shape))
