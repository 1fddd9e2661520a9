"""IQ4_XS: 256 numbers in eight groups of 32, iq4_nl's table under six-bit group scales: x = (d * (scale -
32)) * table[q].

A scale's low nibble lies in scales_l, two to a byte, its upper two bits in scales_h, group by group; the
nibbles of a group are its 16 bytes of qs, as in q4_0.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.codebook import NONLINEAR, fields, flattened, join
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import U8, flat, join_nibbles, quietly, split_nibbles, wide
from satchel.quant.search.tables import nonlinear_super, some_at_a_time

DTYPE = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", (4,)), ("qs", "u1", (128,))])


def split_scales(blocks: Blocks) -> U8:
    """(...) blocks -> (..., 8) scales with their offset of 32."""
    upper = fields(blocks["scales_h"], 2, 8).astype(np.uint8)
    scales: U8 = flattened(fields(blocks["scales_l"], 4, 2)) | upper << 4
    return scales


@quietly
def decode(blocks: Blocks) -> F32:
    step = wide(blocks["d"]) * (split_scales(blocks).astype(np.int8) - 32).astype(np.float32)
    table = NONLINEAR[split_nibbles(blocks["qs"], 16)].astype(np.float32)
    x = step[..., None] * table.reshape(*table.shape[:-1], 8, 32)
    return flat(x.reshape(table.shape))


@some_at_a_time
def encode(x: F32, importance: F32 | None = None) -> Blocks:
    d, scale, q = nonlinear_super(x, importance)
    stored = (scale + 32).astype(np.uint8)
    out = np.empty(d.shape, DTYPE)
    out["d"], out["qs"] = d, join_nibbles(q, 16)
    out["scales_h"] = join(stored >> 4, 2, np.uint16)
    out["scales_l"] = join((stored & 15).reshape(*d.shape, 4, 2), 4, np.uint8)
    return out


FORMAT = Format("iq4_xs", id=23, block=256, dtype=DTYPE, decode=decode, encode=encode, act="a8_256")
