"""MXFP4: 32 four-bit floats (E2M1) under one power of two, as the OCP microscaling standard has them; nibbles
as in q4_0.

x = 2^(e - 128) * table[q] with doubled table values; e = 0 is 2^-128.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.codebook import E2M1
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import U8, flat, join_nibbles, quietly, rows, split_nibbles
from satchel.quant.search.tables import floats, some_at_a_time

DTYPE = np.dtype([("e", "u1"), ("qs", "u1", (16,))])
LARGEST = 2.0**126 * 3  # greater ones would be nearest to 2^128, which is none of float32


def scale_of(e: U8) -> F32:
    """Half of 2^(e - 127); the two smallest are subnormal float32."""
    e = np.asarray(e).astype(np.uint32)
    bits = np.where(e < 2, np.uint32(0x00200000) << np.minimum(e, 1), e - (e > 0) << 23)
    return bits.astype(np.uint32).view(np.float32)


@quietly
def decode(blocks: Blocks) -> F32:
    return flat(scale_of(blocks["e"])[..., None] * E2M1[split_nibbles(blocks["qs"], 16)].astype(np.float32))


@some_at_a_time
@quietly
def encode(x: F32, importance: F32 | None = None) -> Blocks:
    """The exponent of least weighted error, of the four that fit the largest number."""
    most = np.abs(rows(x, 32)).max(axis=-1)
    middle = np.frexp(np.nan_to_num(most, nan=0, posinf=0))[1] + 124
    exponents = np.clip(middle[..., None] + np.arange(-1, 3), 0, 254).astype(np.uint8)
    candidates = exponents.reshape(-1, exponents.shape[-1])
    chosen, q = floats(x, importance, 32, 32, scale_of(candidates).astype(np.float64), LARGEST)
    out = np.empty(most.shape, DTYPE)
    out["e"] = np.take_along_axis(exponents, chosen.astype(np.int64), axis=-1)[..., 0]
    out["qs"] = join_nibbles(q, 16)
    return out


FORMAT = Format("mxfp4", id=39, block=32, dtype=DTYPE, decode=decode, encode=encode, act="a8_32")
