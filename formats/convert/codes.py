"""Repacks integer codes with scales (GPTQ, AWQ, compressed-tensors) into GGUF blocks that decode to the same
values.

A grid is x = scale * (code - zero), with scale and zero shared by groups along a row. `choose` returns the
smallest format that represents a grid exactly, by checking its actual scales and zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from satchel.quant import FORMATS
from satchel.quant.format import F32, Blocks
from satchel.quant.pack import join_nibbles, join_top_bits

Codes = npt.NDArray[np.int16]
EXTENSIONS = ("f8_e4m3", "f8_e5m2", "i8_g128")


@dataclass(frozen=True, slots=True)
class Grid:
    """The affine quantization x = scale * (code - zero) of a matrix."""

    scale: F32  # (rows, groups) float32
    zero: Codes  # (rows, groups) int16
    group: int  # values per scale and zero
    bits: int  # a code is in 0 .. 2^bits - 1

    @property
    def lowest(self) -> int:
        return -int(self.zero.max()) if self.zero.size else 0

    @property
    def highest(self) -> int:
        return (1 << self.bits) - 1 - (int(self.zero.min()) if self.zero.size else 0)


def choose(grid: Grid, extensions: bool = True) -> str:
    """The smallest format that represents every value of the grid exactly; "" where none does.

    extensions: allow Satchel's extension types.
    """
    if not np.isfinite(grid.scale).all():
        return ""
    low, high = grid.lowest, grid.highest
    half = grid.group % 32 == 0 and _is_half(grid.scale)
    if half and low >= -8 and high <= 7:
        return "q4_0"
    if half and high - low < 32 and grid.bits <= 4:
        if _is_half(-grid.scale * grid.zero):
            return "q4_1"
        if low >= -16 and high <= 15:
            return "q5_0"
    if low >= -128 and high <= 127:
        if extensions and grid.group % 128 == 0 and grid.bits > 4:
            return "i8_g128"
        if half:
            return "q8_0"
        if extensions and grid.group % 128 == 0:
            return "i8_g128"
    return ""


def _is_half(x: F32) -> bool:
    """Whether every value is exactly representable in float16."""
    with np.errstate(over="ignore"):
        return bool((x.astype(np.float16).astype(np.float32) == x).all())


def join(grid: Grid, codes: Codes, target: str) -> Blocks:
    """Packs stored codes (rows, K) into blocks (rows, K / block) of a format that `choose` returned."""
    fmt = FORMATS[target]
    blocks = np.empty((codes.shape[0], codes.shape[1] // fmt.block), fmt.dtype)
    each = grid.group // fmt.block
    scale, zero = np.repeat(grid.scale, each, axis=1), np.repeat(grid.zero, each, axis=1)
    parts = codes.reshape(*blocks.shape, fmt.block)
    signed = parts - zero[..., None]
    blocks["d"] = scale
    if target == "q4_0":
        blocks["qs"] = join_nibbles((signed + 8).astype(np.uint8), 16)
    elif target == "q4_1":
        blocks["m"] = -scale * zero
        blocks["qs"] = join_nibbles(parts.astype(np.uint8), 16)
    elif target == "q5_0":
        shifted = (signed + 16).astype(np.uint8)
        blocks["qh"], blocks["qs"] = join_top_bits(shifted >> 4), join_nibbles(shifted & 15, 16)
    else:
        blocks["qs"] = signed.astype(np.int8)
    return blocks


def numbers(grid: Grid, codes: Codes) -> F32:
    """Dequantizes: scale * (code - zero), (rows, K) float32, for grids that no format represents exactly."""
    scale, zero = np.repeat(grid.scale, grid.group, axis=1), np.repeat(grid.zero, grid.group, axis=1)
    result: F32 = scale * (codes - zero).astype(np.float32)
    return result


def unpack(words: npt.NDArray[Any], bits: int) -> Codes:
    """Codes (n, m * 32 / bits) of little-endian 32-bit words (n, m), lowest bits first. Codes of 3 bits cross
    word boundaries.
    """
    raw = np.ascontiguousarray(words).view(np.uint8).reshape(words.shape[0], -1)
    if bits == 8:
        return raw.astype(np.int16)
    if bits == 4:
        pairs = np.stack([raw & 15, raw >> 4], axis=-1)
        return pairs.reshape(raw.shape[0], -1).astype(np.int16)
    single = np.unpackbits(raw, axis=1, bitorder="little").reshape(raw.shape[0], -1, bits)
    weights = (1 << np.arange(bits)).astype(np.int16)
    result: Codes = single.astype(np.int16) @ weights
    return result
