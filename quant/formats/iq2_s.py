"""IQ2_S: 256 numbers as 32 points of a codebook of 1024 in eight dimensions with free signs: x = d * (scale +
1/2) / 4 * sign * point, four-bit scales for each 16 numbers.

A point's lower eight bits are a byte of qs, its upper two lie in qh, four points to a byte; each byte of
signs serves one point.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.codebook import bits_to_signs, fields, flattened, grid, join
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import flat, quietly, wide
from satchel.quant.search.grid import CodebookLayout, needed, search

DTYPE = np.dtype(
    [("d", "<f2"), ("qs", "u1", (32,)), ("signs", "u1", (32,)), ("qh", "u1", (8,)), ("scales", "u1", (8,))]
)
LAYOUT = CodebookLayout("iq2_s", run=16, steps=16, unit=8.0)


@quietly
def decode(blocks: Blocks) -> F32:
    scale = flattened(fields(blocks["scales"], 4, 2)).astype(np.float32)
    step = wide(blocks["d"]) * (np.float32(0.5) + scale) * np.float32(0.25)
    point = blocks["qs"].astype(np.uint16) | flattened(fields(blocks["qh"], 2, 4)).astype(np.uint16) << 8
    x = grid("iq2_s")[point] * bits_to_signs(blocks["signs"])
    return flat(flattened(step[..., None] * x.reshape(*x.shape[:-2], 16, 16)))


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    found = search(x, needed(importance, "iq2_s"), LAYOUT)
    out = np.empty(found.d.shape, DTYPE)
    out["d"], out["qs"] = found.d, found.points & 255
    out["qh"] = join((found.points >> 8).reshape(*out.shape, 8, 4), 2, np.uint8)
    out["signs"] = join(found.minus.reshape(*out.shape, 32, 8), 1, np.uint8)
    out["scales"] = join(found.scale.reshape(*out.shape, 8, 2), 4, np.uint8)
    return out


FORMAT = Format("iq2_s", id=22, block=256, dtype=DTYPE, decode=decode, encode=encode, act="a8_256")
