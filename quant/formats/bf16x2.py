"""BF16X2: 32 numbers, each as the sum of two bfloat16, 16 significant bits; the activations of f16 and bf16
weights.

Encoding is defined to the bit (cext/quant/bf16x2.h repeats it): high = x rounded to nearest even, low = x -
high likewise. An infinity or NaN stands in high, with low 0; a finite x that would round to infinity has both
halves cut instead of rounded, so that high + low stays finite.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.format import F32, Blocks, Format
from satchel.quant.formats import bf16
from satchel.quant.pack import flat, quietly, rows

DTYPE = np.dtype([("high", "<u2", (32,)), ("low", "<u2", (32,))])
OVERFLOWS = 0x7F7F8000  # bits of the least magnitude that rounds to infinity


@quietly
def encode(x: F32, importance: F32 | None = None) -> Blocks:
    x = rows(x, 32)
    bits = x.view(np.uint32)
    finite = np.isfinite(x)
    cut = finite & ((bits & 0x7FFFFFFF) >= OVERFLOWS)
    out = np.empty(x.shape[:-1], DTYPE)
    out["high"] = np.where(cut, bits >> 16, bf16.encode(x))
    rest = np.where(finite, x - bf16.decode(out["high"]), np.float32(0))
    out["low"] = np.where(cut, rest.view(np.uint32) >> 16, bf16.encode(rest))
    return out


@quietly
def decode(blocks: Blocks) -> F32:
    """high + low, which is exact in float32."""
    return flat(bf16.decode(blocks["high"]) + bf16.decode(blocks["low"]))


FORMAT = Format("bf16x2", id=1216, block=32, dtype=DTYPE, decode=decode, encode=encode, weights=False)
