"""Block formats, found by file name: every module here defines one as FORMAT.

FORMATS by name, BY_ID by number.
"""

from __future__ import annotations

import importlib
import pkgutil

from satchel.quant.format import Format


def _discover() -> dict[str, Format]:
    found: dict[str, Format] = {}
    for module in pkgutil.iter_modules(__path__):
        fmt: Format = importlib.import_module(f"{__name__}.{module.name}").FORMAT
        if any(fmt.id == other.id for other in found.values()):
            raise ImportError(f"quant/formats/{module.name}.py: GGUF type {fmt.id} is defined twice")
        found[fmt.name] = fmt
    return found


FORMATS: dict[str, Format] = _discover()
BY_ID: dict[int, Format] = {fmt.id: fmt for fmt in FORMATS.values()}
