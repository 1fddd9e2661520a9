"""The searches and their steps by name: compiled by numba where it can be imported, else in plain numpy, far
slower, with the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from satchel.quant.jit.compiled import link
from satchel.quant.jit.numba_import import import_numba
from satchel.quant.search import affine_loops, block_loops, numpy_steps, scale_loops, step_loops

LOOPS = (step_loops, block_loops, affine_loops, scale_loops)


@functools.cache
def step(name: str) -> Callable[..., Any]:
    """One search or search step, compiled where numba is there."""
    try:
        numba = import_numba()
    except ImportError:
        fallback: Callable[..., Any] = getattr(numpy_steps, name)
        return fallback
    return link(LOOPS, numba)[name]
