"""API flavours (OpenAI, Anthropic, Ollama): their URL paths and the shape of their errors. Each package
beside this file may define one as `FLAVOUR`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import satchel.server as server
from satchel.server.problem import Problem

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ApiFlavour:
    """One API flavour."""

    name: str
    prefixes: Sequence[str]  # of paths; the longest match wins, and "" matches every path
    error: Callable[[Problem, str], tuple[int, JsonObject]]  # (problem, request id) -> HTTP status and body
    late: Callable[[Problem], bytes]  # an error as an event of a stream that has begun
    header: str = ""  # a request with this header belongs to the flavour, whatever its path
    id_header: str = "x-request-id"  # the response header of the request id, beside x-request-id


def packages() -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(server.__path__):
        if found.ispkg:
            yield importlib.import_module(f"{server.__name__}.{found.name}")


@cache
def flavours() -> tuple[ApiFlavour, ...]:
    found = (getattr(package, "FLAVOUR", None) for package in packages())
    return tuple(f for f in found if f is not None)


def flavour_of(path: str, headers: Container[str] = ()) -> ApiFlavour:
    """The flavour of a request, found by its headers, then by its path."""
    marked = (f for f in flavours() if f.header and f.header in headers)
    if (found := next(marked, None)) is not None:
        return found
    fits = [
        (len(p), f) for f in flavours() for p in f.prefixes if path == p or path.startswith(f"{p}/") or not p
    ]
    return max(fits, key=lambda fit: fit[0])[1]


def routed() -> Iterator[ModuleType]:
    """The modules of the packages that have a `router`, in the order of their names."""
    for package in packages():
        for found in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{found.name}")
            if hasattr(module, "router"):
                yield module
