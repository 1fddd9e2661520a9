"""Q2_0: 64 codes of two bits under one f16 scale, x = d * (q - 1), for weights that are mostly -1, 0 or 1;
code 4 j + i is bits 2 i and 2 i + 1 of byte j.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.codebook import fields, flattened, join
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import flat, quietly, wide
from satchel.quant.search import least_squares

DTYPE = np.dtype([("d", "<f2"), ("pairs", "u1", (16,))])


@quietly
def decode(blocks: Blocks) -> F32:
    codes = flattened(fields(blocks["pairs"], 2, 4)).astype(np.int8)
    return flat(wide(blocks["d"]) * (codes - 1).astype(np.float32))


@quietly
def encode(x: F32, importance: F32 | None = None) -> Blocks:
    """The search has d * (q - 2); the same numbers are -d * ((3 - q) - 1). Of a ternary block, d could have
    either sign: it is positive, as ggml's.
    """
    d, q = least_squares.symmetric(x, importance, 2, 64)
    d, q = np.float16(0) - d, 3 - q
    ternary = (d < 0) & (q < 3).all(axis=-1)
    out = np.empty(d.shape, DTYPE)
    out["d"] = np.where(ternary, -d, d)
    q = np.where(ternary[..., None], 2 - q, q)
    out["pairs"] = join(q.reshape(*out.shape, 16, 4), 2, np.uint8)
    return out


FORMAT = Format("q2_0", id=42, block=64, dtype=DTYPE, decode=decode, encode=encode, act="a8_32")
