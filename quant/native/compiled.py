"""Which machine code runs the quantizer's loops: the C library's where it was built, else numba's, else none.

A loop is a Python function that numba can compile; it is the definition, and C has the same under its name.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from satchel.errors import RequestError
from satchel.quant.native.library import search_library
from satchel.quant.native.numba_import import import_numba

LOG = logging.getLogger("satchel.quant")
INSTALL = "pip install 'satchel[slow]'"


@functools.cache
def compiled(loop: Callable[..., Any], plain: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """The loop as machine code that runs without the interpreter's lock. Where there is none, `plain`, which
    computes the same in numpy, with a note once; RequestError where that is None.
    """
    found = search_library().loop(loop.__name__) or by_numba(loop)
    if found is not None:
        return found
    if plain is None:
        raise RequestError(
            "this search needs compiled code: the C library of searches is not installed, nor is numba;"
            f" {INSTALL}, or choose q4_0 to q8_0 or q2_k to q6_k"
        )
    _note()
    return plain


@functools.cache
def whole(search: Callable[..., None]) -> Callable[..., None]:
    """A search that C has as a whole; elsewhere the function itself, which is made of loops."""
    return search_library().loop(search.__name__) or search


@functools.cache
def by_numba(loop: Callable[..., Any]) -> Callable[..., Any] | None:
    """The loop compiled by numba at its first call, kept on the disk where a folder can be written. None
    where numba cannot be imported.
    """
    try:
        numba = import_numba()
    except ImportError:
        return None
    for cache in (True, False):
        try:
            found: Callable[..., Any] = numba.njit(loop, nogil=True, cache=cache, error_model="numpy")
            return found
        except RuntimeError:  # numba found no folder for its cache
            continue
    return None


def means() -> str:
    """What runs the searches here, in a few words."""
    library = search_library()
    if not library.reason:
        return f"C, {library.name}"
    return "numba" if by_numba(_nothing) is not None else "numpy, slowly"


def _nothing() -> None:
    """What numba would compile."""


@functools.cache
def _note() -> None:
    reason = "the C library of searches is not installed, nor is numba"
    LOG.warning("%s: numpy searches for scales, far slower; %s", reason, INSTALL)
