"""KV cache quantization: the codes of keys and values. Every step quantizes rows of each layer, so there is
no search for scales. The kernels compute the same bits (cext/cpu/attention/kv_rows.h).
"""

from __future__ import annotations

import numpy as np

from satchel.errors import RequestError
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.formats import q4_0
from satchel.quant.pack import join_nibbles, quietly, rows, to_f16

CACHE_TYPES = ("f16", "bf16", "f32", "q8_0", "fp8", "q4_0")
ROTATED = ("q8_0", "fp8", "q4_0")  # types whose heads get a Hadamard rotation first, which spreads outliers


@quietly
def encode_q4_0(x: F32) -> Blocks:
    """(..., n * 32) -> (..., n) blocks of Q4_0 by the nearest code, ties to even.

    d = m / -8 for m, the first number of largest magnitude, so that m gets the code -8; 8 becomes 7. As in
    Q8_0 all codes are 0 where -8 / m is not finite, and a NaN or infinity in a block makes d NaN.
    """
    x = rows(x, 32)
    place = np.abs(x).argmax(axis=-1)[..., None]
    extreme = np.take_along_axis(x, place, -1)
    inverse = np.where(extreme == 0, np.float32(0), np.float32(-8) / extreme)
    usable = np.isfinite(extreme) & np.isfinite(inverse)
    codes = np.rint(np.where(usable, x, np.float32(0)) * np.where(usable, inverse, np.float32(0)))
    d = np.where(np.isfinite(extreme), extreme / np.float32(-8), np.float32(np.nan))[..., 0]
    out = np.empty(d.shape, q4_0.DTYPE)
    out["d"] = to_f16(d)
    out["qs"] = join_nibbles((np.clip(codes, -8, 7) + 8).astype(np.uint8), 16)
    return out


def encode_cache(x: F32, format: Format) -> Blocks:
    """x (..., D) as a cache of this format keeps it. RequestError where no cache can have the format."""
    if format.name == "q4_0":
        return encode_q4_0(x)
    if format.name not in CACHE_TYPES or format.encode is None:
        raise RequestError(f"{format.name} is no cache type: there are {', '.join(CACHE_TYPES)}")
    return format.encode(np.ascontiguousarray(x, np.float32), None)
