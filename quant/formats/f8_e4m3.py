"""F8_E4M3 (an extension of ours): 128 codes of the eight-bit float E4M3 under one float32 scale, x = d *
value[q], as FP8 checkpoints keep their weights.

Bias 7, no infinity: 0x7F and 0xFF are NaN, 448 is the largest number.
"""

from __future__ import annotations

import functools

import numpy as np

from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import U8, flat, quietly, rows

DTYPE = np.dtype([("d", "<f4"), ("qs", "u1", (128,))])


@functools.cache
def values() -> F32:
    """(256,) what each code stands for."""
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, (code & 7).astype(np.float32)
    size = np.ldexp(np.where(exponent == 0, fraction, fraction + np.float32(8)), np.maximum(exponent, 1) - 10)
    table: F32 = np.where(code & 0x7F == 0x7F, np.float32(np.nan), np.where(code < 128, size, -size))
    table.flags.writeable = False
    return table


@quietly
def decode(blocks: Blocks) -> F32:
    return flat(blocks["d"][..., None] * values()[blocks["qs"]])


def nearest(size: F32, values: F32) -> U8:
    """Indexes into the ascending values of those nearest to `size`, ties to even."""
    borders = (values[1:] + values[:-1]) / 2
    below = np.searchsorted(borders, size)
    tie = (below % 2 == 1) & (size == borders[np.minimum(below, len(borders) - 1)])
    codes: U8 = (below + tie).astype(np.uint8)
    return codes


def nearest_codes(x: F32, values: F32) -> tuple[F32, U8]:
    """(..., 128) -> d (...) that puts the largest |x| on the last of `values`, and codes: indexes into the
    ascending values, ties to even, with the sign in the top bit. What is not finite makes d NaN and codes 0.
    """
    most = np.abs(x).max(axis=-1)
    d = most / values[-1]
    usable = np.isfinite(most) & (d > 0)
    size = np.where(
        usable[..., None], np.abs(x) / np.where(usable, d, np.float32(1))[..., None], np.float32(0)
    )
    sign = np.where(np.signbit(x) & usable[..., None], np.uint8(128), np.uint8(0))
    return np.where(np.isfinite(most), d, np.float32(np.nan)), nearest(size, values) | sign


@quietly
def encode(x: F32, importance: F32 | None = None) -> Blocks:
    """Importance changes nothing: the range sets the scale, and each code is the nearest."""
    d, q = nearest_codes(rows(x, 128), values()[:0x7F])
    out = np.empty(d.shape, DTYPE)
    out["d"], out["qs"] = d, q
    return out


FORMAT = Format("f8_e4m3", id=2001, block=128, dtype=DTYPE, decode=decode, encode=encode, act="bf16x2")
