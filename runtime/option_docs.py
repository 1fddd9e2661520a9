"""The docstring of a dataclass whose fields declare options: load_option.py and request_option.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def with_docs(kind: type[T], docs: Mapping[str, str]) -> type[T]:
    """Adds a line for each option, docs by name, to the docstring; python -OO has none."""
    if kind.__doc__ is not None:
        lines = (f"    {name}: {doc}" for name, doc in docs.items())
        kind.__doc__ = "\n".join((kind.__doc__.rstrip(), "", *lines))
    return kind
