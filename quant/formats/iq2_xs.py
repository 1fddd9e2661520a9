"""IQ2_XS: 256 numbers as 32 points of a codebook of 512 in eight dimensions, each with its signs: x = d *
(scale + 1/2) / 4 * sign * point, four-bit scales for each 16 numbers.

A word of qs is a point (nine bits) and seven sign bits; the eighth makes the number of minus signs even.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.codebook import even_signs, fields, flattened, grid, join
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import flat, quietly, wide
from satchel.quant.search.grid import CodebookLayout, needed, search

DTYPE = np.dtype([("d", "<f2"), ("qs", "<u2", (32,)), ("scales", "u1", (8,))])
LAYOUT = CodebookLayout("iq2_xs", run=16, steps=16, unit=8.0, even=8)


@quietly
def decode(blocks: Blocks) -> F32:
    scale = flattened(fields(blocks["scales"], 4, 2)).astype(np.float32)
    step = wide(blocks["d"]) * (np.float32(0.5) + scale) * np.float32(0.25)
    x = grid("iq2_xs")[blocks["qs"] & 511] * even_signs()[blocks["qs"] >> 9]
    return flat(flattened(step[..., None] * x.reshape(*x.shape[:-2], 16, 16)))


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    found = search(x, needed(importance, "iq2_xs"), LAYOUT)
    out = np.empty(found.d.shape, DTYPE)
    seven = join(found.minus.reshape(*out.shape, 32, 8)[..., :7], 1, np.uint16)
    out["d"], out["qs"] = found.d, found.points.astype(np.uint16) | seven << 9
    out["scales"] = join(found.scale.reshape(*out.shape, 8, 2), 4, np.uint8)
    return out


FORMAT = Format("iq2_xs", id=17, block=256, dtype=DTYPE, decode=decode, encode=encode, act="a8_256")
