"""Q4_1: 32 four-bit codes under an f16 scale and minimum, x = d * q + m; nibbles as in q4_0."""

from __future__ import annotations

import numpy as np

from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import flat, join_nibbles, quietly, split_nibbles, wide
from satchel.quant.search import least_squares

DTYPE = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", (16,))])


@quietly
def decode(blocks: Blocks) -> F32:
    return flat(wide(blocks["d"]) * split_nibbles(blocks["qs"], 16).astype(np.float32) + wide(blocks["m"]))


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    d, m, q = least_squares.affine(x, importance, 15)
    out = np.empty(d.shape, DTYPE)
    out["d"], out["m"], out["qs"] = d, m, join_nibbles(q, 16)
    return out


FORMAT = Format("q4_1", id=3, block=32, dtype=DTYPE, decode=decode, encode=encode, act="a8_32")
