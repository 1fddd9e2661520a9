"""Q2_K: 256 numbers in sixteen groups of 16, two bits each: x = (d * scale) * q - (dmin * min), scale in the
low four bits of a group's byte, min in the high.

Each 32 bytes of qs serve 128 numbers: four runs of 32, run k in bits 2k and 2k + 1.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.codebook import join_runs, split_runs
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import flat, quietly, wide
from satchel.quant.search.least_squares import affine_low

DTYPE = np.dtype([("scales", "u1", (16,)), ("qs", "u1", (64,)), ("d", "<f2"), ("dmin", "<f2")])


@quietly
def decode(blocks: Blocks) -> F32:
    step = wide(blocks["d"]) * (blocks["scales"] & 15).astype(np.float32)
    base = wide(blocks["dmin"]) * (blocks["scales"] >> 4).astype(np.float32)
    q = split_runs(blocks["qs"], 2)
    x = step[..., None] * q.reshape(*q.shape[:-1], 16, 16).astype(np.float32) - base[..., None]
    return flat(x.reshape(q.shape))


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    found = affine_low(x, importance)
    out = np.empty(found.d.shape, DTYPE)
    out["d"], out["dmin"], out["scales"] = found.d, found.dmin, found.scale | found.low << 4
    out["qs"] = join_runs(found.q, 2)
    return out


FORMAT = Format("q2_k", id=10, block=256, dtype=DTYPE, decode=decode, encode=encode, act="a8_256")
