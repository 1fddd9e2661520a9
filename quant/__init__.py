"""Block formats, found by file name: every module here that defines FORMAT is one.

FORMATS by name, BY_ID by number.
"""

from __future__ import annotations

import importlib
import pkgutil

from satchel.quant.format import Format

__all__ = ["BY_ID", "FORMATS", "Format"]


def _discover() -> dict[str, Format]:
    found: dict[str, Format] = {}
    for module in pkgutil.iter_modules(__path__):
        fmt = getattr(importlib.import_module(f"{__name__}.{module.name}"), "FORMAT", None)
        if isinstance(fmt, Format):
            if any(fmt.id == other.id for other in found.values()):
                raise ImportError(f"quant/{module.name}.py: GGUF type {fmt.id} is defined twice")
            found[fmt.name] = fmt
    return found


FORMATS: dict[str, Format] = _discover()
BY_ID: dict[int, Format] = {fmt.id: fmt for fmt in FORMATS.values()}
