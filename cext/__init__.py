"""The native side as Python sees it: cffi's reading of hal.h and search.h, numpy dtypes derived from hal.h,
and the libraries by name.

Nothing is restated here: structs, op names and the ABI hash come from include/hal.h through the generated
module _hal.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from satchel.cext import _hal

ffi = _hal.ffi
ABI_HASH: int = _hal.ABI_HASH
OPS: tuple[str, ...] = _hal.OPS
SEARCH_HASH: int = _hal.SEARCH_HASH

SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")  # of libraries
RTLD = getattr(os, "RTLD_NOW", 0) | getattr(os, "RTLD_NODELETE", 0)  # neither on Windows
_opened: list[Any] = []  # cffi closes a library when its handle is freed
_SCALARS = {
    "float": "<f4", "double": "<f8", "char": "S1",
    "int8_t": "i1", "uint8_t": "u1", "int16_t": "<i2", "uint16_t": "<u2",
    "int32_t": "<i4", "uint32_t": "<u4", "int64_t": "<i8", "uint64_t": "<u8",
}  # fmt: skip


def _dtype(ctype: Any) -> np.dtype[Any]:
    if ctype.kind == "struct":
        names, fields = zip(*ctype.fields, strict=True)
        formats = [_dtype(f.type) for f in fields]
        offsets = [f.offset for f in fields]
        return np.dtype(
            {"names": names, "formats": formats, "offsets": offsets, "itemsize": ffi.sizeof(ctype)}
        )
    if ctype.kind == "array":
        if ctype.item.cname == "char":
            return np.dtype(f"S{ctype.length}")
        return np.dtype((_dtype(ctype.item), (ctype.length,)))
    return np.dtype(_SCALARS[ctype.cname])


@functools.cache
def dtype_of(struct: str) -> np.dtype[Any]:
    """numpy dtype of a struct of hal.h, same offsets and size."""
    return _dtype(ffi.typeof(struct))


@functools.cache
def _arg_type(op: str) -> np.dtype[Any] | None:
    try:
        return dtype_of(f"arg_{op}")
    except ffi.error:
        return None


def arg_size(op: str) -> int:
    """Bytes of an op's argument struct; 0 where it takes none."""
    found = _arg_type(op)
    return found.itemsize if found is not None else 0


def pack_arg(op: str, args: Mapping[str, Any]) -> bytes:
    """An op's argument struct as bytes, padded to 8; its fields must be exactly the names in `args`."""
    dtype = _arg_type(op)
    names = set(dtype.names or ()) if dtype is not None else set()
    if names != set(args):
        raise TypeError(f"arg_{op} of hal.h has the fields {sorted(names)}, the op gives {sorted(args)}")
    if dtype is None:
        return b""
    record = np.zeros((), dtype)
    for name, value in args.items():
        record[name] = value
    return record.tobytes() + bytes(-dtype.itemsize % 8)


def unpack_arg(op: str, raw: bytes) -> dict[str, Any]:
    """The fields of an op's argument struct."""
    dtype = _arg_type(op)
    if dtype is None:
        return {}
    record = np.frombuffer(raw, dtype, 1)[0]
    return {name: record[name].item() for name in dtype.names or ()}


def chosen_folders() -> list[Path]:
    """The folders of SATCHEL_BACKENDS."""
    named = os.environ.get("SATCHEL_BACKENDS", "").split(os.pathsep)
    return [Path(folder).expanduser().resolve() for folder in named if folder]


def libraries() -> list[Path]:
    """Backend libraries: in the folders of SATCHEL_BACKENDS first, then those installed with the package. The
    paths are absolute: for a name without a slash, the loader would search its own folders.
    """
    # A folder that is named twice counts once.
    folders = dict.fromkeys([*chosen_folders(), Path(_hal.__file__).parent])
    return [p for folder in folders for p in sorted(folder.glob(f"libsatchel_*{SUFFIX}"))]


def open_library(path: Path) -> Any:
    """Opens a library for as long as this process runs, so that its functions can be kept anywhere. OSError
    where it cannot be opened.
    """
    _opened.append(ffi.dlopen(str(path), RTLD))
    return _opened[-1]


def search_library() -> Path | None:
    """The library of the quantizer's searches; None where it was not built."""
    path = Path(_hal.__file__).parent / f"satchel_search{SUFFIX}"
    return path if path.exists() else None


def include() -> Path:
    """The folder of headers that a backend or a kernel outside of this project is compiled with."""
    return Path(_hal.__file__).parent / "headers"
