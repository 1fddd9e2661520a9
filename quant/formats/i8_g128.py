"""I8_G128 (an extension of ours): 128 signed bytes under one float32 scale, x = d * q, as checkpoints with
group-wise INT8 keep their weights.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.format import F32, Blocks, Format
from satchel.quant.formats.q8_0 import codes
from satchel.quant.pack import flat, quietly, rows

DTYPE = np.dtype([("d", "<f4"), ("qs", "i1", (128,))])


@quietly
def decode(blocks: Blocks) -> F32:
    return flat(blocks["d"][..., None] * blocks["qs"].astype(np.float32))


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    """Each code is the nearest, the range sets the scale, as in q8_0."""
    d, q = codes(rows(x, 128))
    out = np.empty(d.shape, DTYPE)
    out["d"], out["qs"] = d, q
    return out


FORMAT = Format("i8_g128", id=2003, block=128, dtype=DTYPE, decode=decode, encode=encode, act="a8_32")
