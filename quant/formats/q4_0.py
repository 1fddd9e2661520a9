"""Q4_0: 32 four-bit codes under one f16 scale, x = d * (q - 8); number j in the low nibble of byte j, j + 16
in the high.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import flat, join_nibbles, quietly, split_nibbles, wide
from satchel.quant.search import least_squares

DTYPE = np.dtype([("d", "<f2"), ("qs", "u1", (16,))])


@quietly
def decode(blocks: Blocks) -> F32:
    return flat(wide(blocks["d"]) * (split_nibbles(blocks["qs"], 16).astype(np.int8) - 8).astype(np.float32))


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    d, q = least_squares.symmetric(x, importance, 8)
    out = np.empty(d.shape, DTYPE)
    out["d"], out["qs"] = d, join_nibbles(q, 16)
    return out


FORMAT = Format("q4_0", id=2, block=32, dtype=DTYPE, decode=decode, encode=encode, act="a8_32")
