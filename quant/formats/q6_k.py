"""Q6_K: 256 numbers in sixteen groups of 16, six bits each, signed 8-bit group scales: x = (d * scale) * (q -
32).

Each half of 128 numbers owns 64 bytes of low nibbles and 32 bytes of upper bit pairs: of four runs of 32
numbers the first two are the low nibbles, the last two the high ones; run k has bits 2k and 2k + 1 of qh.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.codebook import join_runs, split_runs
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import flat, join_nibbles, quietly, split_nibbles, wide
from satchel.quant.search import least_squares

DTYPE = np.dtype([("ql", "u1", (128,)), ("qh", "u1", (64,)), ("scales", "i1", (16,)), ("d", "<f2")])


@quietly
def decode(blocks: Blocks) -> F32:
    q = (split_nibbles(blocks["ql"], 64) | split_runs(blocks["qh"], 2) << 4).astype(np.int8) - 32
    step = wide(blocks["d"]) * blocks["scales"].astype(np.float32)
    x = step[..., None] * q.reshape(*q.shape[:-1], 16, 16).astype(np.float32)
    return flat(x.reshape(q.shape))


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    found = least_squares.symmetric_super(x, importance, 32)
    out = np.empty(found.d.shape, DTYPE)
    out["d"], out["scales"] = found.d, found.scale
    out["ql"], out["qh"] = join_nibbles(found.q & 15, 64), join_runs(found.q >> 4, 2)
    return out


FORMAT = Format("q6_k", id=14, block=256, dtype=DTYPE, decode=decode, encode=encode, act="a8_256")
