"""BF16: the upper half of a float32, one element per block. Encoding rounds to nearest even; NaN stays
quiet.
"""

import numpy as np

from satchel.quant.format import F32, Blocks, Format


def decode(blocks: Blocks) -> F32:
    return (np.asarray(blocks).astype(np.uint32) << 16).view(np.float32)


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + (bits >> 16 & 1) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, bits >> 16 | 0x40, rounded).astype(np.uint16)


FORMAT = Format("bf16", id=30, block=1, dtype=np.dtype("<u2"), decode=decode, encode=encode, act="bf16x2")
