"""I16: plain integers without a scale, one per block; never a weight of a product, so read only."""

import numpy as np

from satchel.quant.format import F32, Blocks, Format


def decode(blocks: Blocks) -> F32:
    return np.asarray(blocks).astype(np.float32)


FORMAT = Format("i16", id=25, block=1, dtype=np.dtype("<i2"), decode=decode)
