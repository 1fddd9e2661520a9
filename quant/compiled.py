"""Loops compiled by numba at their first use: for searches that numpy could not do in bearable time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from satchel.quant.errors import RequestError


@functools.cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as machine code that runs without the interpreter's lock. RequestError without numba."""
    try:
        import numba
    except ImportError as error:
        reason = "this search is compiled by numba, which cannot be imported here"
        raise RequestError(
            f"{reason} ({error}); install numba, or choose q4_0 to q8_0 or q4_k to q6_k"
        ) from None
    return jit(function, numba)


def jit(function: Callable[..., Any], numba: Any) -> Callable[..., Any]:
    """The function compiled by the module numba, kept on the disk where a folder can be written."""
    for cache in (True, False):
        try:
            found: Callable[..., Any] = numba.njit(function, nogil=True, cache=cache, error_model="numpy")
            return found
        except RuntimeError:  # numba found no folder for its cache
            continue
    return function
