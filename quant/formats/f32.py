"""F32: plain 32-bit floats, one element per block."""

import numpy as np

from satchel.quant.format import F32, Blocks, Format


def decode(blocks: Blocks) -> F32:
    return np.ascontiguousarray(blocks, "<f4").astype(np.float32, copy=False)


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    return np.ascontiguousarray(x, np.float32)


FORMAT = Format("f32", id=0, block=1, dtype=np.dtype("<f4"), decode=decode, encode=encode)
