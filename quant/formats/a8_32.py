"""A8_32: 32 signed bytes under one scale, x = d * q, with their sum; the activations of the formats in blocks
of 32.

Encoding is defined to the bit (cext/quant/a8_32.h repeats it): d (rounded to f16, kept as float32) and q are
q8_0's, see there for the borders; sum is that of the codes, exact, so a weight's minimum m has the share m *
d * sum.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.format import F32, Blocks, Format
from satchel.quant.formats.q8_0 import codes
from satchel.quant.pack import flat, quietly, rows, to_f16

DTYPE = np.dtype([("d", "<f4"), ("sum", "<i4"), ("qs", "i1", (32,))])


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    d, q = codes(rows(x, 32))
    out = np.empty(d.shape, DTYPE)
    out["d"], out["qs"] = to_f16(d), q
    out["sum"] = q.sum(axis=-1, dtype=np.int32)
    return out


@quietly
def decode(blocks: Blocks) -> F32:
    return flat(blocks["d"][..., None] * blocks["qs"].astype(np.float32))


FORMAT = Format("a8_32", id=1032, block=32, dtype=DTYPE, decode=decode, encode=encode, weights=False)
