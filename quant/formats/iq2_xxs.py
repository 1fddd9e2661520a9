"""IQ2_XXS: 256 numbers in eight groups of 32: four points of a codebook of 256 in eight dimensions, each with
its signs: x = d * (scale + 1/2) / 4 * sign * point.

A group's second word holds four fields of seven sign bits (the eighth makes their number even) and, on top,
the four-bit scale.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.codebook import even_signs, fields, flattened, grid, join
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import flat, quietly, wide
from satchel.quant.search.grid import CodebookLayout, needed, search

GROUP = np.dtype([("points", "u1", (4,)), ("signs", "<u4")])
DTYPE = np.dtype([("d", "<f2"), ("groups", GROUP, (8,))])
LAYOUT = CodebookLayout("iq2_xxs", run=32, steps=16, unit=8.0, even=8)


@quietly
def decode(blocks: Blocks) -> F32:
    words = blocks["groups"]["signs"]
    step = wide(blocks["d"]) * (np.float32(0.5) + (words >> 28).astype(np.float32)) * np.float32(0.25)
    signs = even_signs()[fields(words, 7, 4)]
    x = step[..., None, None] * grid("iq2_xxs")[blocks["groups"]["points"]] * signs
    return flat(flattened(x, 3))


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    found = search(x, needed(importance, "iq2_xxs"), LAYOUT)
    out = np.empty(found.d.shape, DTYPE)
    out["d"], out["groups"]["points"] = found.d, found.points.reshape(*out.shape, 8, 4)
    seven = join(found.minus.reshape(*out.shape, 8, 4, 8)[..., :7], 1, np.uint32)
    out["groups"]["signs"] = join(seven, 7, np.uint32) | found.scale.astype(np.uint32) << 28
    return out


FORMAT = Format("iq2_xxs", id=16, block=256, dtype=DTYPE, decode=decode, encode=encode, act="a8_256")
