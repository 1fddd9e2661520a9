"""Q5_0: 32 five-bit codes under one f16 scale, x = d * (q - 16); nibbles as in q4_0, top bits in a 32-bit
word.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import flat, join_nibbles, join_top_bits, quietly, split_nibbles, split_top_bits, wide
from satchel.quant.search import least_squares

DTYPE = np.dtype([("d", "<f2"), ("qh", "u1", (4,)), ("qs", "u1", (16,))])


@quietly
def decode(blocks: Blocks) -> F32:
    q = split_nibbles(blocks["qs"], 16) | split_top_bits(blocks["qh"]) << 4
    return flat(wide(blocks["d"]) * (q.astype(np.int8) - 16).astype(np.float32))


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    d, q = least_squares.symmetric(x, importance, 16)
    out = np.empty(d.shape, DTYPE)
    out["d"], out["qh"], out["qs"] = d, join_top_bits(q >> 4), join_nibbles(q & 15, 16)
    return out


FORMAT = Format("q5_0", id=6, block=32, dtype=DTYPE, decode=decode, encode=encode, act="a8_32")
