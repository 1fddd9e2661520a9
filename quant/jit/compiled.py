"""Loops compiled by numba at their first use, for searches that would be too slow in numpy."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from satchel.errors import RequestError
from satchel.quant.jit.numba_import import import_numba


@functools.cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as machine code that runs without the interpreter's lock. RequestError without numba."""
    try:
        numba = import_numba()
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


@functools.cache
def link(modules: Sequence[ModuleType], numba: Any) -> Mapping[str, Callable[..., Any]]:
    """All functions of these modules by name, each compiled when it is called, and calling the others'
    compiled selves: numba can't call a plain function. Those of simd/vectors.py are as compiled.py beside it
    has them.
    """
    vectors = importlib.import_module("satchel.quant.jit.simd.compiled")
    scope: dict[str, Any] = {}
    for module in modules:
        scope.update(vars(module))
    scope.update(vectors.FUNCTIONS)
    # numba looks at a function's own file only to tell whether what it kept is still valid. A frozen program
    # has no files of its modules, and keeps nothing.
    files = [Path(module.__file__ or "") for module in (*modules, vectors)]
    stamp = max(file.stat().st_mtime_ns if file.exists() else 0 for file in files)
    found: dict[str, Callable[..., Any]] = {}
    for function in [f for f in scope.values() if isinstance(f, FunctionType)]:
        copy = FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
        copy.__module__, copy.__qualname__ = function.__module__, f"{function.__name__}-{stamp:x}"
        found[function.__name__] = jit(copy, numba)
    scope.update(found)
    return found
