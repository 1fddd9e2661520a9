"""F8_E5M2 (an extension of ours): 128 codes of the eight-bit float E5M2 under one float32 scale, x = d *
value[q], as FP8 checkpoints keep their weights.

A code is the upper byte of an f16, infinities and NaN included.
"""

from __future__ import annotations

import functools

import numpy as np

from satchel.quant.format import F32, Blocks, Format
from satchel.quant.formats.f8_e4m3 import nearest_codes
from satchel.quant.pack import flat, quietly, rows

DTYPE = np.dtype([("d", "<f4"), ("codes", "u1", (128,))])


@functools.cache
def values() -> F32:
    """(256,) what each code stands for."""
    table = (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)
    table.flags.writeable = False
    return table


@quietly
def decode(blocks: Blocks) -> F32:
    return flat(blocks["d"][..., None] * values()[blocks["codes"]])


@quietly
def encode(x: F32, importance: F32 | None = None) -> Blocks:
    d, q = nearest_codes(rows(x, 128), values()[:0x7C])
    out = np.empty(d.shape, DTYPE)
    out["d"], out["codes"] = d, q
    return out


FORMAT = Format("f8_e5m2", id=2002, block=128, dtype=DTYPE, decode=decode, encode=encode, act="bf16x2")
