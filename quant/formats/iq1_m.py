"""IQ1_M: iq1_s's codebook with a three-bit scale for each 16 numbers and a shift for each eight: x = d * (2
scale + 1) * (point + shift).

A nibble of qh is the upper three bits of a point and the sign of its shift. A word of scales serves 64
numbers: four scales, and on top four bits of d, the lowest in the first word.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.codebook import fields, flattened, grid, join
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.formats.iq1_s import SHIFT
from satchel.quant.pack import F16, flat, quietly, wide
from satchel.quant.search.grid import CodebookLayout, needed, search

DTYPE = np.dtype([("qs", "u1", (32,)), ("qh", "u1", (16,)), ("scales", "<u2", (4,))])
LAYOUT = CodebookLayout("iq1_s", run=16, steps=8, shift=0.125)


def scale_of(blocks: Blocks) -> F16:
    """(...) blocks -> their d, put together from four places."""
    d: F16 = join(blocks["scales"] >> 12, 4, np.uint16).view(np.float16)
    return d


@quietly
def decode(blocks: Blocks) -> F32:
    scale = flattened(fields(blocks["scales"], 3, 4))
    step = wide(scale_of(blocks)) * (2 * scale + 1).astype(np.float32)
    high = flattened(fields(blocks["qh"], 4, 2))
    shift = np.where(high & 8, -SHIFT, SHIFT)
    points = grid("iq1_s")[blocks["qs"].astype(np.uint16) | (high & 7).astype(np.uint16) << 8]
    x = points + shift[..., None]
    return flat(flattened(step[..., None] * x.reshape(*x.shape[:-2], 16, 16)))


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    found = search(x, needed(importance, "iq1_m"), LAYOUT)
    out = np.empty(found.d.shape, DTYPE)
    high = (found.points >> 8).astype(np.uint8) | found.down.astype(np.uint8) << 3
    out["qs"], out["qh"] = found.points & 255, join(high.reshape(*out.shape, 16, 2), 4, np.uint8)
    out["scales"] = join(found.scale.reshape(*out.shape, 4, 4), 3, np.uint16)
    out["scales"] |= fields(found.d.view(np.uint16), 4, 4) << 12
    return out


FORMAT = Format("iq1_m", id=29, block=256, dtype=DTYPE, decode=decode, encode=encode, act="a8_256")
