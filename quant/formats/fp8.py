"""FP8 (an extension of ours): the eight-bit float E4M3 alone, one element per block and no scale, as caches
of keys and values keep it.

Bias 7, no infinity: 0x7F and 0xFF are NaN, 448 is the largest number. Encoding rounds to nearest, ties to
even; finite numbers beyond 448 become 448, and what is not finite becomes NaN, so that it is seen downstream.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.format import F32, Blocks, Format
from satchel.quant.formats.f8_e4m3 import nearest, values
from satchel.quant.pack import quietly


def decode(blocks: Blocks) -> F32:
    return np.asarray(values()[np.asarray(blocks)], np.float32)


@quietly
def encode(x: F32, importance: F32 | None = None) -> Blocks:
    x = np.ascontiguousarray(x, np.float32)
    codes = np.where(np.isfinite(x), nearest(np.abs(x), values()[:0x7F]), np.uint8(0x7F))
    return codes | np.where(np.signbit(x), np.uint8(128), np.uint8(0))


FORMAT = Format("fp8", id=1008, block=1, dtype=np.dtype("u1"), decode=decode, encode=encode, weights=False)
