"""A8_256: 256 signed bytes with one float32 scale, x = d * q, and the sums of each 16 and each 32 codes; the
activations of K-format weights. A block fills five lines of 64 bytes, its codes first.

Encoding is defined to the bit (cext/quant/a8_256.h repeats it): m = the first x of largest magnitude, s =
-127 / m, q = min(127, s * x) with ties to even, d = 1 / s. Where s is not finite the block is zero; a NaN or
infinity in a block makes d NaN and all q 0, so that it is seen downstream.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import flat, quietly, rows

DTYPE = np.dtype(
    [
        ("qs", "i1", (256,)),
        ("sums", "<i2", (16,)),
        ("sums32", "<i2", (8,)),
        ("d", "<f4"),
        ("pad", "u1", (12,)),
    ]
)


@quietly
def encode(x: F32, importance: F32 | None = None) -> Blocks:
    x = rows(x, 256)
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=-1)[..., None], axis=-1)
    s = np.float32(-127) / extreme
    usable = np.isfinite(extreme) & np.isfinite(s)
    s = np.where(usable, s, np.float32(0))
    q = np.minimum(np.rint(s * np.where(usable, x, np.float32(0))), np.float32(127))
    d = np.where(usable, np.float32(1) / s, np.where(np.isfinite(extreme), np.float32(0), np.float32(np.nan)))
    out = np.zeros(x.shape[:-1], DTYPE)
    out["d"], out["qs"] = d[..., 0], q.astype(np.int8)
    out["sums"] = out["qs"].reshape(*x.shape[:-1], 16, 16).sum(axis=-1, dtype=np.int16)
    out["sums32"] = out["sums"][..., ::2] + out["sums"][..., 1::2]
    return out


@quietly
def decode(blocks: Blocks) -> F32:
    return flat(blocks["d"][..., None] * blocks["qs"].astype(np.float32))


FORMAT = Format("a8_256", id=1256, block=256, dtype=DTYPE, decode=decode, encode=encode, weights=False)
