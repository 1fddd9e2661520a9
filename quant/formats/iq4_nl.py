"""IQ4_NL: 32 four-bit indexes into a table of sixteen values under one f16 scale, x = d * table[q]; nibbles
as in q4_0.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.codebook import NONLINEAR
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import flat, join_nibbles, quietly, split_nibbles, wide
from satchel.quant.search.tables import nonlinear, some_at_a_time

DTYPE = np.dtype([("d", "<f2"), ("codes", "u1", (16,))])


@quietly
def decode(blocks: Blocks) -> F32:
    return flat(wide(blocks["d"]) * NONLINEAR[split_nibbles(blocks["codes"], 16)].astype(np.float32))


@some_at_a_time
def encode(x: F32, importance: F32 | None = None) -> Blocks:
    d, q = nonlinear(x, importance)
    out = np.empty(d.shape, DTYPE)
    out["d"], out["codes"] = d, join_nibbles(q, 16)
    return out


FORMAT = Format("iq4_nl", id=20, block=32, dtype=DTYPE, decode=decode, encode=encode, act="a8_32")
