"""An API flavour (OpenAI, Anthropic, Ollama): its paths, and the shape of its errors. The packages beside
this file define them.
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
    """prefixes: beginnings of paths; the longest that fits decides, and "" takes the rest. error(problem,
    request id): the HTTP status and the body. late(problem): the event as which an error stands in a stream
    that has begun. header: requests that bring it are the flavour's own, whatever their path. id_header:
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
def flavours() -> tuple[ApiFlavour, ...]:
    found = (getattr(package, "FLAVOUR", None) for package in packages())
    return tuple(f for f in found if f is not None)


def flavour_of(path: str, headers: Container[str] = ()) -> ApiFlavour:
    """The flavour of a request, by its headers and path."""
    marked = (f for f in flavours() if f.header and f.header in headers)
    if (found := next(marked, None)) is not None:
        return found
    fits = [
        (len(p), f) for f in flavours() for p in f.prefixes if path == p or path.startswith(f"{p}/") or not p
    ]
    return max(fits, key=lambda fit: fit[0])[1]


def routed() -> Iterator[ModuleType]:
    """Modules of the packages that have a router, by name."""
    for package in packages():
        for found in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{found.name}")
            if hasattr(module, "router"):
                yield module
