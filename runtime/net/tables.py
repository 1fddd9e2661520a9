"""A plan's segment as a message: its tables as they lie in memory, one after another.

What is read here has the right sizes and types; whether the tables say what a device can run, the backend
checks as for any plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from satchel.errors import RequestError
from satchel.runtime.device.device import TABLES
from satchel.runtime.net.link import Message
from satchel.runtime.plan import BufferSpec, Segment

USAGES = 8  # HAL_WEIGHT to HAL_PREFETCH of hal.h
NAME = 256  # most characters of a buffer's name
MOST_SIZE = 1 << 62  # bytes of a buffer


def write_segment(segment: Segment) -> tuple[Message, bytes]:
    """The message of a segment, and the bytes of its tables."""
    tables = [getattr(segment, name).tobytes() for name in TABLES]
    parts = [*tables, segment.args]
    buffers = [[b.name, b.usage, b.size] for b in segment.buffers]
    return {"tables": [len(part) for part in parts], "buffers": buffers}, b"".join(parts)


def read_segment(message: Message, data: memoryview, device: str) -> Segment:
    """The inverse of write_segment(). Raises RequestError for anything else."""
    sizes = numbers(message, "tables", len(TABLES) + 1, len(data))
    if sum(sizes) != len(data):
        raise RequestError(f"tables: expected {sum(sizes):,} bytes, found {len(data):,}")
    at, found = 0, dict[str, Any]()
    for (name, dtype), size in zip(TABLES.items(), sizes, strict=False):
        if size % dtype.itemsize:
            raise RequestError(f"{name}: {size:,} bytes are no multiple of {dtype.itemsize}")
        found[name] = np.frombuffer(data[at : at + size], dtype).copy()
        at += size
    return Segment(device, (), (), **found, args=bytes(data[at:]), buffers=_buffers(message))


def _buffers(message: Message) -> tuple[BufferSpec, ...]:
    told = message.get("buffers")
    if not isinstance(told, list):
        raise RequestError(f"buffers: expected a list, found {told!r:.60}")
    found = []
    for row in told:
        if not (isinstance(row, list) and len(row) == 3 and isinstance(row[0], str) and len(row[0]) <= NAME):
            raise RequestError(f"buffers: expected a name, a usage and a size, found {row!r:.60}")
        name, usage, size = row
        found.append(BufferSpec(name, whole(usage, "usage", USAGES - 1), whole(size, "size", MOST_SIZE)))
    return tuple(found)


def whole(value: object, name: str, most: int, least: int = 0) -> int:
    """A whole number in a range. Raises RequestError for anything else."""
    if type(value) is not int or not least <= value <= most:
        raise RequestError(f"{name} is {value!r:.60}: expected a number from {least:,} to {most:,}")
    return value


def number(message: Mapping[str, Any], name: str, most: int, least: int = 0) -> int:
    """whole() of a value of a message."""
    return whole(message.get(name), name, most, least)


def numbers(message: Mapping[str, Any], name: str, count: int, most: int) -> list[int]:
    """So many numbers of a message."""
    told = message.get(name)
    if not isinstance(told, list) or len(told) != count:
        raise RequestError(f"{name} is {told!r:.60}: expected {count} numbers")
    return [whole(value, name, most) for value in told]


def text(message: Mapping[str, Any], name: str, most: int = 4096) -> str:
    """A text of a message."""
    told = message.get(name)
    if not isinstance(told, str) or len(told) > most:
        raise RequestError(f"{name} is {told!r:.60}: expected a text of at most {most:,} characters")
    return told
