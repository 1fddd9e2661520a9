"""Q8_K: 256 signed bytes under one float32 scale, x = d * q, with the sums of each 16 codes, which decoding
does not need.

The reference library makes it of activations while it computes; a file can hold it, so it is read only.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import flat, quietly

DTYPE = np.dtype([("d", "<f4"), ("qs", "i1", (256,)), ("sums", "<i2", (16,))])


@quietly
def decode(blocks: Blocks) -> F32:
    return flat(blocks["d"][..., None] * blocks["qs"].astype(np.float32))


FORMAT = Format("q8_k", id=15, block=256, dtype=DTYPE, decode=decode)
