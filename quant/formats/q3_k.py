"""Q3_K: 256 numbers in sixteen groups of 16, three bits each, signed 6-bit group scales: x = (d * (scale -
32)) * (q - 4).

The lower two bits lie in qs as in q2_k; the third of number i of run g of 32 is bit g of hmask[i]. Scales 0
to 7 have their low nibbles in the low halves of the first eight bytes, 8 to 15 in the high; the upper two
bits of scale g are bits 2 (g // 4) and up of byte 8 + g % 4.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.codebook import fields, flattened, join, join_runs, split_runs
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import U8, flat, join_nibbles, quietly, split_nibbles, wide
from satchel.quant.search.least_squares import symmetric_low

DTYPE = np.dtype([("hmask", "u1", (32,)), ("qs", "u1", (64,)), ("scales", "u1", (12,)), ("d", "<f2")])


def split_scales(packed: U8) -> U8:
    """(..., 12) bytes -> (..., 16) scales with their offset of 32."""
    upper = flattened(np.moveaxis(fields(packed[..., 8:], 2, 4), -1, -2))
    scales: U8 = split_nibbles(packed[..., :8], 8) | upper << 4
    return scales


def join_scales(scales: U8) -> U8:
    """The inverse of split_scales, for values below 64."""
    upper = join(np.moveaxis((scales >> 4).reshape(*scales.shape[:-1], 4, 4), -2, -1), 2, np.uint8)
    return np.concatenate([join_nibbles(scales & 15, 8), upper], axis=-1)


@quietly
def decode(blocks: Blocks) -> F32:
    step = wide(blocks["d"]) * (split_scales(blocks["scales"]).astype(np.int8) - 32).astype(np.float32)
    q = (split_runs(blocks["qs"], 2) | split_runs(blocks["hmask"], 1) << 2).astype(np.int8) - 4
    x = step[..., None] * q.reshape(*q.shape[:-1], 16, 16).astype(np.float32)
    return flat(x.reshape(q.shape))


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    found = symmetric_low(x, importance)
    out = np.empty(found.d.shape, DTYPE)
    out["d"], out["scales"] = found.d, join_scales((found.scale + 32).astype(np.uint8))
    out["hmask"], out["qs"] = join_runs(found.q >> 2, 1), join_runs(found.q & 3, 2)
    return out


FORMAT = Format("q3_k", id=11, block=256, dtype=DTYPE, decode=decode, encode=encode, act="a8_256")
