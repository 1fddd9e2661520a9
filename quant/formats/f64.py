"""F64: 64-bit floats, one element per block. Decoding rounds to the nearest float32, as every reader of
weights does; encoding is exact.
"""

import numpy as np

from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import quietly


@quietly
def decode(blocks: Blocks) -> F32:
    return np.asarray(blocks).astype(np.float32)


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    return np.asarray(x).astype("<f8")


FORMAT = Format("f64", id=28, block=1, dtype=np.dtype("<f8"), decode=decode, encode=encode)
