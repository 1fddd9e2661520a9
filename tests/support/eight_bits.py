"""Activations in FP8 as CUDA's kernels round them (cext/cuda/fp8.cu, expert_scaled.cu), and a comparison of
their products.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from accuracy import nmse
from one_step import Case

from satchel.quant.format import F32
from satchel.quant.formats.f8_e4m3 import values
from satchel.runtime.graph import Array

MOST = np.float32(448)  # the largest number of E4M3
SCALED, BLOCK = 128, 32  # elements under a scale: a float32, of MXFP8 a power of two
USUAL = 1e37  # numbers from here on may overflow


def e4m3(x: npt.NDArray[np.floating]) -> F32:
    """The nearest E4M3 values, ties to even; larger ones become 448."""
    table = values()[:0x7F]
    size = np.minimum(np.abs(x), MOST)
    below = np.clip(np.searchsorted(table, size, side="right") - 1, 0, 125)
    low, high = table[below], table[below + 1]
    up = (size - low > high - size) | ((size - low == high - size) & (below % 2 == 1))
    return np.where(np.isnan(x), np.nan, np.copysign(np.where(up, high, low), x)).astype(np.float32)


def halves(x: F32, n: int, block: int = SCALED) -> F32:
    """x (T, K) rounded to `n` E4M3 values with a scale per block, the second of what the first leaves."""
    blocks = x.reshape(len(x), -1, block)
    most = np.abs(blocks).max(-1, keepdims=True)
    scale = np.where(np.isfinite(most), np.maximum(most / MOST, np.float32(1e-30)), np.float32(np.nan))
    with np.errstate(invalid="ignore"):
        left = (blocks * (1 / scale)).astype(np.float32)
        first = e4m3(left)
        kept = first + e4m3(left - first) if n == 2 else first
        return (kept * scale).reshape(x.shape)


def mxfp8(x: F32) -> F32:
    """x (..., K) rounded to MXFP8: blocks of 32 under the smallest power of two, from 2^-127 on, that maps
    none beyond 448. A block that is not finite becomes NaN.
    """
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK).astype(np.float64)
    most = np.abs(blocks).max(-1, keepdims=True)
    fraction, power = np.frexp(np.where(np.isfinite(most), most, 1.0))
    power = np.maximum(power - 9 + (fraction > 448 / 512), -127)
    scale = np.where(np.isfinite(most), np.ldexp(1.0, power), np.nan)
    with np.errstate(invalid="ignore"):
        return (e4m3(blocks / scale) * scale).astype(np.float32).reshape(x.shape)


def check_tokens(one: Case, got: Array, want: Array, bound: float) -> None:
    """Each token by itself, because its numbers may be 1e30 times another's. bound: of the NMSE."""
    for t in range(len(want)):
        usual = np.isfinite(want[t]) & (np.abs(want[t]) < USUAL)
        assert np.isfinite(got[t][usual]).all(), f"{one.name}, token {t}"
        assert nmse(got[t][usual], want[t][usual]) <= bound, f"{one.name}, token {t}"
