"""A dialect: which paths are its own, and how it says what went wrong. Found in the packages beside this
file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import satchel.cli.server as server
from satchel.cli.server.problem import Problem

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Dialect:
    """prefixes: beginnings of paths; the longest that fits decides, and "" takes the rest. error(problem,
    request id): the HTTP status and the body. late(problem): the event as which an error stands in a stream
    that has begun. header: requests that bring it are the dialect's own, whatever their path. id_header:
    where its clients look for the request's id, which stands in x-request-id too.
    """

    name: str
    prefixes: Sequence[str]
    error: Callable[[Problem, str], tuple[int, JsonObject]]
    late: Callable[[Problem], bytes]
    header: str = ""
    id_header: str = "x-request-id"


def packages() -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(server.__path__):
        if found.ispkg:
            yield importlib.import_module(f"{server.__name__}.{found.name}")


@cache
def dialects() -> tuple[Dialect, ...]:
    found = (getattr(package, "DIALECT", None) for package in packages())
    return tuple(d for d in found if d is not None)


def dialect_of(path: str, headers: Container[str] = ()) -> Dialect:
    """The dialect that a request belongs to."""
    marked = (d for d in dialects() if d.header and d.header in headers)
    if (found := next(marked, None)) is not None:
        return found
    fits = [
        (len(p), d) for d in dialects() for p in d.prefixes if path == p or path.startswith(f"{p}/") or not p
    ]
    return max(fits, key=lambda fit: fit[0])[1]


def routed() -> Iterator[ModuleType]:
    """Modules of the packages that have a router, by name."""
    for package in packages():
        for found in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{found.name}")
            if hasattr(module, "router"):
                yield module
