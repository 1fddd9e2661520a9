"""TQ1_0: 256 digits of base three under one f16 scale, x = d * (digit - 1), five digits to a byte.

A byte is the fraction of its digits, rounded up to 1/256: times 3^k (modulo 256), then times 3, the part
above 256 is digit k. The first 32 bytes hold 160 numbers, byte i those at i, i + 32 and so on; the next 16
hold 80 likewise, the four bytes of qh the last 16 with four digits each.
"""

from __future__ import annotations

import numpy as np

from satchel.quant.codebook import flattened
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.pack import U8, flat, quietly, wide
from satchel.quant.search.tables import ternary

DTYPE = np.dtype([("qs", "u1", (48,)), ("qh", "u1", (4,)), ("d", "<f2")])
_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]


def _digits(packed: U8, count: int) -> U8:
    """(..., n) bytes -> (..., count * n) digits 0 to 2: the first of each byte, then the second."""
    shifted = packed[..., None, :] * _POWERS[:count]  # the overflow drops the digits before
    return flattened((shifted.astype(np.uint16) * 3 >> 8).astype(np.uint8))


@quietly
def decode(blocks: Blocks) -> F32:
    parts = ((blocks["qs"][..., :32], 5), (blocks["qs"][..., 32:], 5), (blocks["qh"], 4))
    q = np.concatenate([_digits(packed, count) for packed, count in parts], axis=-1)
    return flat(wide(blocks["d"]) * (q.astype(np.int8) - 1).astype(np.float32))


def _pack(digits: U8, count: int) -> U8:
    """The inverse of _digits."""
    parts = digits.reshape(*digits.shape[:-1], count, digits.shape[-1] // count).astype(np.uint16)
    number = (parts * _POWERS[4 - np.arange(count)]).sum(axis=-2)  # the first digit counts most
    packed: U8 = ((number * 256 + 242) // 243).astype(np.uint8)
    return packed


def encode(x: F32, importance: F32 | None = None) -> Blocks:
    d, q = ternary(x, importance)
    out = np.empty(d.shape, DTYPE)
    out["d"], out["qh"] = d, _pack(q[..., 240:], 4)
    out["qs"] = np.concatenate([_pack(q[..., :160], 5), _pack(q[..., 160:240], 5)], axis=-1)
    return out


FORMAT = Format("tq1_0", id=34, block=256, dtype=DTYPE, decode=decode, encode=encode, act="a8_256")
