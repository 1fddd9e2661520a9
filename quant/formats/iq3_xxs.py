"""IQ3_XXS: 256 numbers in eight groups of 32: eight points of a codebook of 256 in four dimensions, signs for
each eight numbers: x = d * (scale + 1/2) / 2 * sign * point.

A group's word holds four fields of seven sign bits (the eighth makes their number even) and, on top, the
four-bit scale.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.codebook import even_signs, fields, flattened, grid, join
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import flat, quietly, wide
from satchel.quant.search.grid import CodebookLayout, search

DTYPE = np.dtype([("d", "<f2"), ("qs", "u1", (64,)), ("signs", "<u4", (8,))])
LAYOUT = CodebookLayout("iq3_xxs", run=32, steps=16, unit=4.0, even=8)


@quietly
def decode(blocks: Blocks) -> F32:
    words = blocks["signs"]
    step = wide(blocks["d"]) * (np.float32(0.5) + (words >> 28).astype(np.float32)) * np.float32(0.5)
    signs = even_signs()[fields(words, 7, 4)]
    points = grid("iq3_xxs")[blocks["qs"]].reshape(*words.shape, 32)
    return flat(flattened(step[..., None] * points * signs.reshape(points.shape)))


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    found = search(x, importance, LAYOUT)
    out = np.empty(found.d.shape, DTYPE)
    out["d"], out["qs"] = found.d, found.points
    seven = join(found.minus.reshape(*out.shape, 8, 4, 8)[..., :7], 1, np.uint32)
    out["signs"] = join(seven, 7, np.uint32) | found.scale.astype(np.uint32) << 28
    return out


FORMAT = Format("iq3_xxs", id=18, block=256, dtype=DTYPE, decode=decode, encode=encode, act="a8_256")
