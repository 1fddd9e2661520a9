"""Finds backend libraries at run time, by file name; numba, where it is installed, fills the same struct from
Python. There is no silent fallback here.
"""

from __future__ import annotations

import functools
import importlib.util
import mmap
from pathlib import Path

from satchel import cext
from satchel.errors import DeviceError
from satchel.runtime.device.device import Backend, BackendLibrary, error_text

SETS = b"sets of this library:"  # then their names, a zero byte
TEST_BACKENDS = frozenset({"dry", "emulated", "null", "remote"})


def _open_library(path: Path) -> BackendLibrary:
    name = path.stem.removeprefix("libsatchel_")
    try:
        # Never closed: an unclosed device runs threads in it until the process ends.
        table = cext.open_library(path).hal_backend_entry()
    except (OSError, AttributeError) as error:
        return BackendLibrary(name, str(path), f"{path.name} cannot be opened: {error}", -1)
    if table.hash != cext.ABI_HASH:
        return BackendLibrary(
            name, str(path), f"{path.name} was built for another version of Satchel: build it again", -1
        )
    name = cext.ffi.string(table.name).decode()
    score = int(table.score())
    reason = "" if score > 0 else f"{name} cannot run on this machine: {error_text(table)}"
    return BackendLibrary(name, str(path), reason, score, table)


def _numba() -> BackendLibrary:
    try:
        from satchel.runtime.backends.numba import make_backend

        table = make_backend(cext.ffi)
    except ImportError as error:
        reason = f"numba cannot be imported ({error}): pip install 'satchel[slow]'"
        return BackendLibrary("numba", "numba", reason, 0)
    return BackendLibrary("numba", "numba", "", 1, table)


def numba_installed() -> bool:
    """Whether numba could be imported; it is not."""
    return importlib.util.find_spec("numba") is not None


def library_files() -> tuple[Path, ...]:
    """Files of all backend libraries; none is opened."""
    return tuple(cext.libraries())


def kernel_sets(path: Path) -> tuple[str, ...]:
    """The kernel sets in a library, the best last, read from its file (`cpu_set_list` of
    cext/cpu/sets/isa.c). Empty for a library that names none. Libraries for other systems can be read too.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at = content.find(SETS)
            end = content.find(b"\0", at)
            return tuple(content[at + len(SETS) : end].decode().split()) if 0 <= at < end else ()
    except (OSError, ValueError):  # it is gone, or empty
        return ()


@functools.cache
def libraries() -> tuple[BackendLibrary, ...]:
    """All backend libraries that were found, usable or not, those of SATCHEL_BACKENDS first."""
    return tuple(_open_library(path) for path in cext.libraries())


def offered() -> tuple[BackendLibrary, ...]:
    """The libraries that lists and errors name: a test backend only if SATCHEL_BACKENDS has its folder."""
    chosen = cext.chosen_folders()
    return tuple(f for f in libraries() if f.name not in TEST_BACKENDS or Path(f.path).parent in chosen)


def open_backend(found: BackendLibrary) -> Backend:
    """The backend of a usable library, with the kernels that users registered and those that were tuned."""
    backend = Backend(found)
    if backend.table.kernels or backend.table.add_kernel:
        from satchel.runtime.kernels.overrides import KernelOverrides

        backend.choose_kernels = KernelOverrides
    return backend


def find_backend(name: str = "auto") -> Backend:
    """The best library of this name. "auto" is cpu, or numba if no library was built. The error lists what
    there is.
    """
    usable = [f for f in libraries() if not f.reason]
    if name == "numba" or (name == "auto" and not any(f.name == "cpu" for f in usable)):
        found = _numba()
        if found.reason:
            raise DeviceError(f"no backend can run: {found.reason}; run `satchel doctor`")
        return open_backend(found)
    wanted = [f for f in usable if f.name == ("cpu" if name == "auto" else name)]
    if wanted:
        return open_backend(max(wanted, key=lambda f: f.score))
    broken = [f.reason for f in libraries() if f.name == name and f.reason]
    slow = {"numba"} if numba_installed() else set[str]()
    have = ", ".join(sorted({f.name for f in offered() if not f.reason} | slow)) or "none"
    raise DeviceError(
        f"device {name!r}: {broken[0] if broken else 'no such backend is installed'}; there is {have}"
    )
