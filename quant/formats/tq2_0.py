"""TQ2_0: 256 codes of two bits under one f16 scale, x = d * (q - 1), for weights that are -1, 0 or 1; laid
out as q2_k's codes.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.codebook import join_runs, split_runs
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import flat, quietly, wide
from satchel.quant.search.tables import ternary

DTYPE = np.dtype([("qs", "u1", (64,)), ("d", "<f2")])


@quietly
def decode(blocks: Blocks) -> F32:
    return flat(wide(blocks["d"]) * (split_runs(blocks["qs"], 2).astype(np.int8) - 1).astype(np.float32))


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    d, q = ternary(x, importance)
    out = np.empty(d.shape, DTYPE)
    out["d"], out["qs"] = d, join_runs(q, 2)
    return out


FORMAT = Format("tq2_0", id=35, block=256, dtype=DTYPE, decode=decode, encode=encode, act="a8_256")
