"""Reference packers of integer and FP8 checkpoint weights, written from the formats' specifications, and the
values that the specifications' formulas give.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from toy_checkpoint import Tensors

F32 = npt.NDArray[np.float32]
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass
class PackedCheckpoint:
    """Tensors by name, and the float32 matrix [rows, columns] that they encode."""

    tensors: Tensors
    values: F32


def pack_down(codes: npt.NDArray[Any], bits: int) -> npt.NDArray[np.int32]:
    """[K, N] codes -> [K * bits / 32, N] words: a bit stream down each column, lowest bits first."""
    n = codes.shape[1]
    stream = (
        codes.astype(np.uint64)[:, None, :] >> np.arange(bits, dtype=np.uint64)[None, :, None]
    ) & np.uint64(1)
    words = stream.reshape(-1, 32, n) << np.arange(32, dtype=np.uint64)[None, :, None]
    return words.sum(axis=1).astype(np.uint32).view(np.int32)


def gptq(
    base: str,
    rows: int,
    columns: int,
    *,
    bits: int = 4,
    group: int = 32,
    symmetric: bool = True,
    version: int = 1,
    order: npt.NDArray[Any] | None = None,
    scale: npt.NDArray[Any] | None = None,
    seed: int = 0,
) -> PackedCheckpoint:
    rng = np.random.default_rng(seed)
    groups, most = columns // group, (1 << bits) - 1
    codes = rng.integers(0, most + 1, (columns, rows))
    zeros = (
        np.full((groups, rows), 1 << bits - 1)
        if symmetric
        else rng.integers(version == 1, most + 1, (groups, rows))
    )
    scales = (rng.uniform(0.5, 2, (groups, rows)) * 0.01).astype(np.float16) if scale is None else scale
    index = np.arange(columns) // group if order is None else order
    values = scales.astype(np.float32)[index] * (codes - zeros[index]).astype(np.float32)
    less = 1 if version == 1 else 0
    tensors: Tensors = {
        f"{base}.qweight": ("I32", pack_down(codes, bits)),
        f"{base}.qzeros": ("I32", np.ascontiguousarray(pack_down((zeros - less).T, bits).T)),
        f"{base}.scales": ("F16" if scales.dtype == np.float16 else "F32", scales),
        f"{base}.g_idx": ("I32", index.astype(np.int32)),
    }
    return PackedCheckpoint(tensors, np.ascontiguousarray(values.T))


def awq(base: str, rows: int, columns: int, *, group: int = 32, seed: int = 0) -> PackedCheckpoint:
    rng = np.random.default_rng(seed)
    codes, zeros = rng.integers(0, 16, (columns, rows)), rng.integers(0, 16, (columns // group, rows))
    scales = (rng.uniform(0.5, 2, zeros.shape) * 0.01).astype(np.float16)
    values = np.repeat(scales.astype(np.float32), group, 0) * (codes - np.repeat(zeros, group, 0))

    def words(x: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        out = np.zeros((len(x), rows // 8), np.uint32)
        for i, column in enumerate(AWQ):
            out |= x[:, column::8].astype(np.uint32) << np.uint32(4 * i)
        return out.view(np.int32)

    tensors: Tensors = {
        f"{base}.qweight": ("I32", words(codes)),
        f"{base}.qzeros": ("I32", words(zeros)),
        f"{base}.scales": ("F16", scales),
    }
    return PackedCheckpoint(tensors, np.ascontiguousarray(values.T.astype(np.float32)))


def compressed(
    base: str,
    rows: int,
    columns: int,
    *,
    bits: int = 4,
    group: int = 32,
    symmetric: bool = True,
    seed: int = 0,
) -> PackedCheckpoint:
    """compressed-tensors' pack-quantized format."""
    rng = np.random.default_rng(seed)
    half = 1 << bits - 1
    codes = rng.integers(-half, half, (rows, columns))
    zeros = (
        np.zeros((rows, columns // group), np.int64)
        if symmetric
        else rng.integers(-half, half, (rows, columns // group))
    )
    scales = (rng.uniform(0.5, 2, zeros.shape) * 0.01).astype(np.float16)
    values = np.repeat(scales.astype(np.float32), group, 1) * (codes - np.repeat(zeros, group, 1))
    tensors: Tensors = {
        f"{base}.weight_packed": ("I32", np.ascontiguousarray(pack_down((codes + half).T, bits).T)),
        f"{base}.weight_scale": ("F16", scales),
        f"{base}.weight_shape": ("I64", np.array([rows, columns], np.int64)),
    }
    if not symmetric:
        tensors[f"{base}.weight_zero_point"] = ("I32", pack_down(zeros + half, bits))
    return PackedCheckpoint(tensors, values.astype(np.float32))


def int8(base: str, rows: int, columns: int, *, groups: int = 1, seed: int = 0) -> PackedCheckpoint:
    """compressed-tensors' int-quantized format: bytes, with a scale for each row or for each group of a
    row.
    """
    rng = np.random.default_rng(seed)
    codes = rng.integers(-128, 128, (rows, columns), dtype=np.int8)
    scales = rng.uniform(0.5, 2, (rows, groups)).astype(np.float32) * np.float32(0.001)
    values = np.repeat(scales, columns // groups, 1) * codes.astype(np.float32)
    return PackedCheckpoint(
        {f"{base}.weight": ("I8", codes), f"{base}.weight_scale": ("F32", scales)}, values
    )


def fp8(
    base: str,
    rows: int,
    columns: int,
    *,
    tile: tuple[int, int] | None = (128, 128),
    name: str = "weight_scale_inv",
    seed: int = 0,
) -> PackedCheckpoint:
    """FP8 E4M3 with a scale for each tile; tile None: one for the tensor."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (rows, columns), dtype=np.uint8)
    codes[codes & 0x7F == 0x7F] = 0x38  # replaces NaN
    high, wide = tile or (rows, columns)
    scales = rng.uniform(0.5, 2, (-(-rows // high), -(-columns // wide))).astype(np.float32)
    spread = np.repeat(np.repeat(scales, high, 0)[:rows], wide, 1)[:, :columns]
    stored = scales if tile else scales.reshape(())
    tensors: Tensors = {f"{base}.weight": ("F8_E4M3", codes), f"{base}.{name}": ("F32", stored)}
    return PackedCheckpoint(tensors, spread * e4m3(codes))


def e4m3(codes: npt.NDArray[np.uint8]) -> F32:
    """FP8 E4M3: one sign bit, four exponent bits with bias 7, three fraction bits."""
    exponent, fraction = (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.float64)
    size = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7))
    return np.where(codes < 128, size, -size).astype(np.float32)
