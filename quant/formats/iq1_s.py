"""IQ1_S: 256 numbers as 32 points of a codebook of 2048 in eight dimensions, coordinates -1, 0 and 1, all
moved by an eighth: x = d * (2 scale + 1) * (point + shift).

A word of qh serves 32 numbers: the upper three bits of four points, the three-bit scale, and the sign of the
shift on top.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.codebook import fields, flattened, grid, join
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import flat, quietly, wide
from satchel.quant.search.grid import CodebookLayout, needed, search

DTYPE = np.dtype([("d", "<f2"), ("qs", "u1", (32,)), ("qh", "<u2", (8,))])
SHIFT = np.float32(0.125)
LAYOUT = CodebookLayout("iq1_s", run=32, steps=8, shift=0.125, shared=True)


@quietly
def decode(blocks: Blocks) -> F32:
    words = blocks["qh"]
    step = wide(blocks["d"]) * (2 * (words >> 12 & 7) + 1).astype(np.float32)
    shift = np.where(words >> 15, -SHIFT, SHIFT)
    point = blocks["qs"].astype(np.uint16) | flattened(fields(words, 3, 4)) << 8
    points = grid("iq1_s")[point].reshape(*words.shape, 32)
    return flat(flattened(step[..., None] * (points + shift[..., None])))


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    found = search(x, needed(importance, "iq1_s"), LAYOUT)
    out = np.empty(found.d.shape, DTYPE)
    down = found.down.reshape(*out.shape, 8, 4)[..., 0].astype(np.uint16)
    high = join((found.points >> 8).reshape(*out.shape, 8, 4), 3, np.uint16)
    out["d"], out["qs"] = found.d, found.points & 255
    out["qh"] = high | found.scale.astype(np.uint16) << 12 | down << 15
    return out


FORMAT = Format("iq1_s", id=19, block=256, dtype=DTYPE, decode=decode, encode=encode, act="a8_256")
