"""An open file as plain dicts and lists, ready for JSON: header, metadata, tensors, totals by type."""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite, prod
from typing import Any

import numpy as np

from satchel.errors import ModelError
from satchel.formats.gguf.reader import GGUF
from satchel.formats.gguf.values import StringArray, Typed

SHOWN = 8  # elements of an array that are shown


def describe(gguf: GGUF, *, tensors: bool = True) -> dict[str, Any]:
    """The file's contents. Arrays show their length and first elements; NaN and infinity become strings."""
    return {
        "path": str(gguf.path),
        "version": gguf.version,
        "alignment": gguf.alignment,
        "parts": [
            {
                "path": str(p.path),
                "size": p.size,
                "data_offset": p.data_offset,
                "tensors": len(p.header.tensors),
            }
            for p in gguf.parts
        ],
        "metadata": {key: describe_value(gguf.metadata.typed(key)) for key in gguf.metadata},
        "tensors": [asdict(info) for info in gguf.tensors.values()] if tensors else [],
        "totals": _totals(gguf),
        "warnings": list(gguf.warnings),
    }


def describe_value(value: Typed) -> dict[str, Any]:
    """The value with its type. Of an array: its length, and its first elements as "value"."""
    found = value.value
    if isinstance(found, StringArray):
        shown = [_decode(found, index) for index in range(min(SHOWN, len(found)))]
        return {"type": value.type_name, "length": len(found), "value": shown}
    if isinstance(found, np.ndarray):
        first = [_number(number) for number in found[:SHOWN].tolist()]
        return {"type": value.type_name, "length": len(found), "value": first}
    return {"type": value.type_name, "value": found if isinstance(found, str) else _number(found)}


def _decode(strings: StringArray, index: int) -> str:
    try:
        return strings[index]
    except ModelError:
        return strings.raw(index).decode("utf-8", "backslashreplace")


def _number(number: bool | int | float) -> bool | int | float | str:
    return number if isfinite(number) else str(number)


def _totals(gguf: GGUF) -> dict[str, Any]:
    formats: dict[str, dict[str, int]] = {}
    for info in gguf.tensors.values():
        total = formats.setdefault(info.format, {"tensors": 0, "elements": 0, "bytes": 0})
        total["tensors"] += 1
        total["elements"] += prod(info.shape)
        total["bytes"] += info.nbytes
    sums = {name: sum(total[name] for total in formats.values()) for name in ("tensors", "elements", "bytes")}
    bits = round(8 * sums["bytes"] / sums["elements"], 3) if sums["elements"] else 0.0
    return {**sums, "bits_per_element": bits, "formats": dict(sorted(formats.items(), key=_largest_first))}


def _largest_first(item: tuple[str, dict[str, int]]) -> int:
    return -item[1]["bytes"]
