"""Q1_0: 128 signs under one f16 scale, x = d where the bit is set and -d where it is not; bit i of byte j is
number 8 j + i.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.codebook import fields, flattened, join
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import flat, quietly, rows, to_f16, wide
from satchel.quant.search.scales import floored, weights

DTYPE = np.dtype([("d", "<f2"), ("bits", "u1", (16,))])


@quietly
def decode(blocks: Blocks) -> F32:
    bits = flattened(fields(blocks["bits"], 1, 8)).astype(np.float32)
    return flat(wide(blocks["d"]) * (np.float32(2) * bits - np.float32(1)))


@quietly
def encode(x: F32, importance: F32 | None = None) -> Blocks:
    """d is the weighted mean of |x|, which is what least squares gives."""
    x = rows(x, 128)
    w = floored(weights(x, importance).reshape(-1, 128)).reshape(x.shape)
    d = (w * np.abs(x)).sum(axis=-1) / w.sum(axis=-1)
    out = np.empty(x.shape[:-1], DTYPE)
    out["d"] = to_f16(d.astype(np.float32))
    out["bits"] = join((x >= 0).reshape(*out.shape, 16, 8), 1, np.uint8)
    return out


FORMAT = Format("q1_0", id=41, block=128, dtype=DTYPE, decode=decode, encode=encode, act="a8_32")
