"""Q4_K: 256 numbers in eight groups of 32, four bits each: x = (d * scale) * q - (dmin * min), 6-bit scale
and min.

32 bytes of qs serve two groups: the even one in the low nibbles, the odd one in the high.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import U8, flat, join_nibbles, join_scales, quietly, split_nibbles, split_scales, wide
from satchel.quant.search import least_squares

DTYPE = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("qs", "u1", (128,))])


@quietly
def values(blocks: Blocks, q: U8) -> F32:
    """Codes (..., n, 256) under the scales of their q4_k or q5_k blocks (..., n)."""
    scale, low = split_scales(blocks["scales"])
    step = wide(blocks["d"]) * scale.astype(np.float32)
    base = wide(blocks["dmin"]) * low.astype(np.float32)
    x = step[..., None] * q.reshape(*q.shape[:-1], 8, 32).astype(np.float32) - base[..., None]
    return flat(x.reshape(q.shape))


def decode(blocks: Blocks) -> F32:
    return values(blocks, split_nibbles(blocks["qs"], 32))


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    found = least_squares.affine_super(x, importance, 15)
    out = np.empty(found.d.shape, DTYPE)
    out["d"], out["dmin"], out["scales"] = found.d, found.dmin, join_scales(found.scale, found.low)
    out["qs"] = join_nibbles(found.q, 32)
    return out


FORMAT = Format("q4_k", id=12, block=256, dtype=DTYPE, decode=decode, encode=encode, act="a8_256")
