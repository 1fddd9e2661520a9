"""F16: IEEE binary16, one element per block. Encoding rounds to nearest even; overflow is infinity, NaN stays
quiet.
"""

import numpy as np

from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import to_f16


def decode(blocks: Blocks) -> F32:
    return np.asarray(blocks).astype(np.float32)


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    return to_f16(x)


FORMAT = Format("f16", id=1, block=1, dtype=np.dtype("<f2"), decode=decode, encode=encode, act="bf16x2")
