"""IQ3_S: 256 numbers as 64 points of a codebook of 512 in four dimensions with free signs: x = d * (2 scale +
1) * sign * point, four-bit scales for each 32 numbers.

A point's ninth bit lies in qh, eight points to a byte; each byte of signs serves eight numbers.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.codebook import bits_to_signs, fields, flattened, grid, join
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import flat, quietly, wide
from satchel.quant.search.grid import CodebookLayout, search

DTYPE = np.dtype(
    [("d", "<f2"), ("qs", "u1", (64,)), ("qh", "u1", (8,)), ("signs", "u1", (32,)), ("scales", "u1", (4,))]
)
LAYOUT = CodebookLayout("iq3_s", run=32, steps=16)


@quietly
def decode(blocks: Blocks) -> F32:
    scale = flattened(fields(blocks["scales"], 4, 2)).astype(np.float32)
    step = wide(blocks["d"]) * (np.float32(1) + np.float32(2) * scale)
    point = blocks["qs"].astype(np.uint16) | flattened(fields(blocks["qh"], 1, 8)).astype(np.uint16) << 8
    points = grid("iq3_s")[point].reshape(*step.shape, 32)
    signs = bits_to_signs(blocks["signs"]).reshape(points.shape)
    return flat(flattened(step[..., None] * points * signs))


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    found = search(x, importance, LAYOUT)
    out = np.empty(found.d.shape, DTYPE)
    out["d"], out["qs"] = found.d, found.points & 255
    out["qh"] = join((found.points >> 8).reshape(*out.shape, 8, 8), 1, np.uint8)
    out["signs"] = join(found.minus.reshape(*out.shape, 32, 8), 1, np.uint8)
    out["scales"] = join(found.scale.reshape(*out.shape, 4, 2), 4, np.uint8)
    return out


FORMAT = Format("iq3_s", id=21, block=256, dtype=DTYPE, decode=decode, encode=encode, act="a8_256")
