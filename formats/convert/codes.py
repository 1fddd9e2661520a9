"""Integer codes under scales, as checkpoints keep them, joined into blocks of GGUF that decode to the same
numbers.

A grid is x = scale * (code - zero), scale and zero shared by groups along a row. `choose` names the smallest
format whose blocks hold a grid exactly, tried on its numbers, not assumed.
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
    """scale, zero: [rows, groups] float32 and int16; group: numbers that share one; bits: of a code, which is
    0 .. 2^bits - 1 before its zero is taken off.
    """

    scale: F32
    zero: Codes
    group: int
    bits: int

    @property
    def lowest(self) -> int:
        return -int(self.zero.max()) if self.zero.size else 0

    @property
    def highest(self) -> int:
        return (1 << self.bits) - 1 - (int(self.zero.min()) if self.zero.size else 0)


def choose(grid: Grid, extensions: bool = True) -> str:
    """The format that holds every number of the grid exactly; "" where none does.

    extensions: allow the types that are Satchel's own.
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
    """Whether every number is one of float16, to the bit."""
    with np.errstate(over="ignore"):
        return bool((x.astype(np.float16).astype(np.float32) == x).all())


def join(grid: Grid, codes: Codes, target: str) -> Blocks:
    """Blocks [rows, row / block] of codes [rows, row] as stored, in a format that `choose` named."""
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
    """scale * (code - zero) [rows, row] in float32, for grids that no format holds."""
    scale, zero = np.repeat(grid.scale, grid.group, axis=1), np.repeat(grid.zero, grid.group, axis=1)
    result: F32 = scale * (codes - zero).astype(np.float32)
    return result


def unpack(words: npt.NDArray[Any], bits: int) -> Codes:
    """Codes [n, m * 32 / bits] of little-endian 32-bit words [n, m], the lowest bits first.

    Three bits run across words; others divide a word.
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
