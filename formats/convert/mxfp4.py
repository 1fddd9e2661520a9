"""MXFP4 checkpoints (gpt-oss): blocks of 32 four-bit floats, two per byte, and their scales.

Codes and scales keep their values. The checkpoint stores neighbouring codes in one byte, GGUF codes i and i +
16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod

import numpy as np

from satchel.errors import ModelError
from satchel.formats.convert.logical import Logical, Rows
from satchel.formats.convert.stored import Array, Stored
from satchel.quant import FORMATS
from satchel.quant.pack import join_nibbles

BLOCKS, SCALES = "_blocks", "_scales"


def mxfp4(tensors: Mapping[str, Stored]) -> Iterator[Logical]:
    """Yields `<name>_blocks` (..., K / 32, 16) with `<name>_scales` (..., K / 32) as tensors (..., K)."""
    for name, blocks in tensors.items():
        if not name.endswith(BLOCKS):
            continue
        scales = tensors.get(name.removesuffix(BLOCKS) + SCALES)
        fits = scales is not None and scales.shape == blocks.shape[:-1] and blocks.shape[-1] == 16
        if scales is None or not fits or {blocks.dtype, scales.dtype} != {"U8"} or len(blocks.shape) < 3:
            got = "none" if scales is None else f"{scales.dtype} {list(scales.shape)}"
            raise ModelError(
                f"{blocks.where}: {name}: expected bytes [..., K / 32, 16] with scales [..., K / 32], got"
                f" {blocks.dtype} {list(blocks.shape)} with {got}; the checkpoint is damaged"
            )
        shape = (*blocks.shape[:-2], blocks.shape[-2] * 32)
        yield Logical(name, shape, "mxfp4", _opener(blocks, scales), (name, scales.name), blocks.where)


def _opener(blocks: Stored, scales: Stored) -> Callable[[], Rows]:
    inner = prod(blocks.shape[1:-2])

    def read(first: int, last: int) -> Array:
        outer, end = first // inner, -(-last // inner)
        codes = blocks.read(outer, end).reshape(-1, *blocks.shape[-2:])[first - outer * inner :]
        exponents = scales.read(outer, end).reshape(-1, scales.shape[-1])[first - outer * inner :]
        codes, exponents = codes[: last - first], exponents[: last - first]
        out = np.empty(exponents.shape, FORMATS["mxfp4"].dtype)
        out["e"] = exponents
        out["qs"] = join_nibbles(
            np.stack((codes & 15, codes >> 4), axis=-1).reshape(*codes.shape[:-1], 32), 16
        )
        return out

    return lambda: read
