"""The steps of the scale searches by name: compiled by numba where it can be imported, else in plain numpy,
far slower, with the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from satchel.quant import search_loops, search_numpy
from satchel.quant.compiled import jit


@functools.cache
def step(name: str) -> Callable[..., Any]:
    """One search step, compiled where numba is there."""
    plain: Callable[..., Any] = getattr(search_loops, name)
    try:
        import numba
    except ImportError:
        fallback: Callable[..., Any] = getattr(search_numpy, name)
        return fallback
    return jit(plain, numba)
