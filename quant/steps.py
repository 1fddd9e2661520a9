"""The steps of the scale searches by name: compiled by numba where it can be imported, else in plain numpy,
far slower, with the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from satchel.quant import search_loops, search_numpy


@functools.cache
def step(name: str) -> Callable[..., Any]:
    """One search step, compiled where numba is there; its disk cache is used only where a folder can be
    written.
    """
    plain: Callable[..., Any] = getattr(search_loops, name)
    try:
        import numba
    except ImportError:
        fallback: Callable[..., Any] = getattr(search_numpy, name)
        return fallback
    for cache in (True, False):
        try:
            compiled: Callable[..., Any] = numba.njit(plain, nogil=True, cache=cache, error_model="numpy")
            return compiled
        except RuntimeError:  # numba found no folder for its cache
            continue
    return plain
