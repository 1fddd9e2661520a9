"""NVFP4: 64 numbers in four groups of 16, four-bit floats (E2M1) under eight-bit float scales (E4M3 without
sign): x = scale / 2 * table[q] with doubled table values.

The eight bytes of a group hold its first eight numbers in their low nibbles, the others in the high. The
scale 0x7F (NaN of E4M3) counts as 0; a set top bit is not looked at otherwise.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.codebook import E2M1
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import U8, flat, join_nibbles, quietly, split_nibbles
from satchel.quant.search.tables import floats, some_at_a_time

DTYPE = np.dtype([("scales", "u1", (4,)), ("qs", "u1", (32,))])
LARGEST = 448 / 2 * 12.0


def scale_of(code: U8) -> F32:
    """(...) bytes of unsigned E4M3 -> half their value."""
    exponent, fraction = (code >> 3 & 15).astype(np.int32), (code & 7).astype(np.float32)
    small = fraction * np.float32(2.0**-9)
    value = np.where(exponent == 0, small, np.ldexp(np.float32(1) + fraction / np.float32(8), exponent - 7))
    half: F32 = np.where(code == 0x7F, np.float32(0), value * np.float32(0.5)).astype(np.float32)
    return half


@quietly
def decode(blocks: Blocks) -> F32:
    table = E2M1[split_nibbles(blocks["qs"], 8)].astype(np.float32)
    x = scale_of(blocks["scales"])[..., None] * table.reshape(*table.shape[:-1], 4, 16)
    return flat(x.reshape(table.shape))


@some_at_a_time
def encode(x: F32, importance: F32 | None = None) -> Blocks:
    """Every scale is tried. Those below 2^-6 are coarse: a tensor of small numbers loses to mxfp4 here."""
    scales = scale_of(np.arange(0x7F, dtype=np.uint8)).astype(np.float64)[None]
    chosen, q = floats(x, importance, 64, 16, scales, LARGEST)
    out = np.empty(chosen.shape[:-1], DTYPE)
    out["scales"], out["qs"] = chosen, join_nibbles(q, 8)
    return out


FORMAT = Format("nvfp4", id=40, block=64, dtype=DTYPE, decode=decode, encode=encode, act="a8_32")
