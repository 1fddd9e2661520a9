"""Q5_K: q4_k with a fifth bit per number: bit g of qh[i] is the top bit of number i of group g."""

from __future__ import annotations

import numpy as np

from satchel.quant.codebook import join_runs, split_runs
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.formats.q4_k import values
from satchel.quant.pack import join_nibbles, join_scales, split_nibbles
from satchel.quant.search import least_squares

DTYPE = np.dtype(
    [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("qh", "u1", (32,)), ("qs", "u1", (128,))]
)


def decode(blocks: Blocks) -> F32:
    return values(blocks, split_nibbles(blocks["qs"], 32) | split_runs(blocks["qh"], 1) << 4)


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    found = least_squares.affine_super(x, importance, 31)
    out = np.empty(found.d.shape, DTYPE)
    out["d"], out["dmin"], out["scales"] = found.d, found.dmin, join_scales(found.scale, found.low)
    out["qh"], out["qs"] = join_runs(found.q >> 4, 1), join_nibbles(found.q & 15, 32)
    return out


FORMAT = Format("q5_k", id=13, block=256, dtype=DTYPE, decode=decode, encode=encode, act="a8_256")
