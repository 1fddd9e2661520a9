"""A small saved state: two groups of layers, one with a sliding window; keys and values have different
formats.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from satchel.quant import FORMATS
from satchel.runtime.graph import Array
from satchel.runtime.kv.saved import SavedShape, write_saved

BLOCK, LENGTH = 4, 5  # tokens of a block, number of blocks
SHAPE = SavedShape(
    model="ab" * 32,
    keys="f16",
    values="q8_0",
    numbers="exact, activations of 8 bits",
    block=BLOCK,
    vocabulary=100,
    windows=(0, 6),
    parts=((("f16", 64), ("q8_0", 68)), (("f16", 32), ("q8_0", 34))),
)
IDS = tuple(int(i) for i in np.random.default_rng(1).integers(0, 100, BLOCK * LENGTH))


def block(group: int, place: int) -> Array:
    """(block_bytes,) uint8: plausible cache contents."""
    rng, parts = np.random.default_rng((group, place)), []
    for name, size in SHAPE.parts[group]:
        format = FORMATS[name]
        count = size // format.dtype.itemsize * format.block
        encoded = format.encode(rng.standard_normal(count).astype(np.float32), None)  # type: ignore[misc]
        parts.append(np.ascontiguousarray(encoded).view(np.uint8).reshape(-1))
    return np.concatenate(parts)


def blocks(group: int, place: int, count: int) -> Array:
    return np.stack([block(group, place + i) for i in range(count)])


def write_state(path: Path) -> Path:
    write_saved(path, SHAPE, IDS, blocks)
    return path
