"""FP8 checkpoints: 8-bit float codes with a scale per tensor, per row, or per tile.

Codes and scales are kept unchanged in Satchel's extension types: blocks of 128 codes with a float32 scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from satchel.errors import ModelError
from satchel.formats.convert.logical import Logical, Rows, retyped
from satchel.formats.convert.stored import Array, Stored
from satchel.quant import FORMATS
from satchel.quant.format import F32

KINDS = {"F8_E4M3": "f8_e4m3", "F8_E5M2": "f8_e5m2"}
# Names of the scale that multiplies a code. DeepSeek's weight_scale_inv is not an inverse either.
SCALES = ("weight_scale_inv", "weight_scale")
FLOATS = ("F16", "BF16", "F32")
BLOCK = 128


def fp8(tensors: Mapping[str, Stored], config: Mapping[str, Any], extensions: bool) -> Iterator[Logical]:
    """Yields every FP8 `<base>.weight` with its scale. ModelError where the scale's shape fits no layout."""
    for name, weight in tensors.items():
        if weight.dtype not in KINDS:
            continue
        base = name.removesuffix(".weight")
        scale = next((tensors[f"{base}.{s}"] for s in SCALES if f"{base}.{s}" in tensors), None)
        used = (name,) if scale is None else (name, scale.name)
        if len(weight.shape) != 2 or 0 in weight.shape:
            raise ModelError(
                f"{weight.where}: {name}: expected a matrix, got FP8 {list(weight.shape)}; this is not"
                " supported"
            )
        yield _logical(weight, _expand(weight, scale, _tile(config)), used, extensions)


def _tile(config: Mapping[str, Any]) -> tuple[int, int]:
    """(rows, columns) of a tile with one scale."""
    size = config.get("weight_block_size") or [BLOCK, BLOCK]
    if isinstance(size, list) and len(size) == 2 and all(type(n) is int and n > 0 for n in size):
        return size[0], size[1]
    raise ModelError(f"config.json: weight_block_size: expected two numbers, got {size!a:.80}")


def _expand(weight: Stored, scale: Stored | None, tile: tuple[int, int]) -> tuple[F32, int, int]:
    """(scales (row tiles, column tiles), rows per tile, columns per tile)."""
    rows, columns = weight.shape
    if scale is None:
        return np.ones((1, 1), np.float32), rows, columns
    if scale.dtype not in FLOATS:
        raise _no_layout(scale, rows, tile)
    values = scale.floats()
    if values.size == 1:
        return values.reshape(1, 1), rows, columns
    if values.ndim == 1 and len(values) == rows:
        return values.reshape(-1, 1), 1, columns
    if values.shape == (rows, 1):
        return values, 1, columns
    if values.ndim == 2 and values.shape == (-(-rows // tile[0]), -(-columns // tile[1])):
        return values, *tile
    if values.ndim == 2 and len(values) == rows and values.size and columns % values.shape[1] == 0:
        return values, 1, columns // values.shape[1]
    raise _no_layout(scale, rows, tile)


def _no_layout(scale: Stored, rows: int, tile: tuple[int, int]) -> ModelError:
    return ModelError(
        f"{scale.where}: {scale.name}: expected one scale, {rows} of them, or one for each tile of"
        f" {list(tile)}, got {scale.dtype} {list(scale.shape)}; the checkpoint is damaged or of a format that"
        " this version does not know"
    )


def _logical(
    weight: Stored, expanded: tuple[F32, int, int], used: tuple[str, ...], extensions: bool
) -> Logical:
    scale, high, wide = expanded
    rows, columns = weight.shape
    name = KINDS[weight.dtype]
    if not np.isfinite(scale).all():
        raise ModelError(
            f"{weight.where}: {used[-1]}: expected finite scales, got NaN or infinity; the checkpoint is"
            " damaged"
        )
    fits = columns % BLOCK == 0 and (wide % BLOCK == 0 or scale.shape[1] == 1)
    if fits and extensions:
        tiles = np.repeat(scale, max(1, min(wide, columns) // BLOCK), axis=1)[:, : columns // BLOCK]

        def blocks() -> Rows:
            return lambda first, last: _join(weight, tiles, high, name, first, last)

        return Logical(weight.name, (rows, columns), name, blocks, used, weight.where, f"kept as {name}")

    def floats() -> Rows:
        def read(first: int, last: int) -> Array:
            picked = scale[np.arange(first, last) // high]
            spread = np.repeat(picked, wide, axis=1)[:, :columns]
            return np.asarray(spread * _values(name)[weight.read(first, last)])

        return read

    decoded = Logical(weight.name, (rows, columns), "f32", floats, used, weight.where)
    why = "rows of no multiple of 128" if not fits else "types of Satchel's own are not wanted"
    return retyped(decoded, "bf16", f"FP8 as bf16: {why}")


def _join(weight: Stored, tiles: F32, high: int, name: str, first: int, last: int) -> Array:
    fmt = FORMATS[name]
    blocks = np.empty((last - first, weight.shape[1] // BLOCK), fmt.dtype)
    blocks["d"] = tiles[np.arange(first, last) // high]
    _codes(blocks)[...] = weight.read(first, last).reshape(*blocks.shape, BLOCK)
    return blocks


def _codes(blocks: Array) -> Array:
    """The codes of blocks: the field after the scale."""
    codes: Array = blocks[(blocks.dtype.names or ())[-1]]
    return codes


def _values(name: str) -> F32:
    """(256,): the value of each code, by the format's decode."""
    fmt = FORMATS[name]
    block = np.zeros(2, fmt.dtype)
    block["d"], _codes(block)[...] = 1, np.arange(256, dtype=np.uint8).reshape(2, BLOCK)
    return fmt.decode(block).reshape(256)
