"""Q8_0: 32 signed bytes under one f16 scale, x = d * q.

Encoding is defined to the bit (cext/quant/a8_32.h repeats it, whose codes these are) as x86's vector units do
it: d = max|x| / 127, q = x * (127 / max|x|) with ties to even, both before d is rounded to f16. Where 127 /
max|x| is not finite, all q are 0; a NaN or infinity in a block makes d NaN and all q 0, so that it is seen
downstream.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import flat, quietly, rows, to_f16, wide

DTYPE = np.dtype([("d", "<f2"), ("qs", "i1", (32,))])


@quietly
def codes(x: F32) -> tuple[F32, npt.NDArray[np.int8]]:
    """(..., 32) -> d (...) in float32 and q (..., 32); shared with a8_32."""
    most = np.abs(x).max(axis=-1)
    d = most / np.float32(127)
    inverse = np.where(most > 0, np.float32(127) / most, np.float32(0))
    usable = np.isfinite(most) & np.isfinite(inverse)
    scaled = (
        np.where(usable[..., None], x, np.float32(0)) * np.where(usable, inverse, np.float32(0))[..., None]
    )
    return np.where(np.isfinite(most), d, np.float32(np.nan)), np.rint(scaled).astype(np.int8)


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    """Importance changes nothing: at 8 bits the range sets the scale, and each code is the nearest."""
    d, q = codes(rows(x, 32))
    out = np.empty(d.shape, DTYPE)
    out["d"], out["qs"] = to_f16(d), q
    return out


@quietly
def decode(blocks: Blocks) -> F32:
    return flat(wide(blocks["d"]) * blocks["qs"].astype(np.float32))


FORMAT = Format("q8_0", id=8, block=32, dtype=DTYPE, decode=decode, encode=encode, act="a8_32")
