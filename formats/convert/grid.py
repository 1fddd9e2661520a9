"""Recovers Q4_0 codes from float weights: quantization-aware training (QAT) leaves floats on Q4_0's grid.

A tensor becomes Q4_0 only if its blocks, decoded and rounded to the stored type, give every stored value
again (apart from the sign of zero).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from satchel.formats.convert.logical import Logical, Rows
from satchel.formats.convert.stored import Array
from satchel.quant import FORMATS
from satchel.quant.format import F32, Blocks
from satchel.quant.pack import join_nibbles

BLOCK = 32
SAMPLE = 8  # rows that are tested before the whole tensor is
CHUNK = 1 << 20  # values tested at a time
NOTE = "floats on Q4_0's grid: their codes are kept"


def on_grid(tensor: Logical) -> Logical:
    """The tensor as q4_0 where that is lossless, else unchanged."""
    columns = tensor.shape[-1]
    if len(tensor.shape) < 2 or columns % BLOCK or not tensor.rows:
        return tensor
    rows = tensor.open()
    picks = np.unique(np.linspace(0, tensor.rows - 1, SAMPLE).astype(int)).tolist()
    # The first blocks of a few rows rule out nearly every tensor of plain floats.
    if any(
        find(tensor.format, rows(i, i + 1)[:, :width]) is None for width in (4 * BLOCK, None) for i in picks
    ):
        return tensor
    each = max(1, CHUNK // columns)
    for first in range(0, tensor.rows, each):
        if find(tensor.format, rows(first, min(first + each, tensor.rows))) is None:
            return tensor

    def open_rows() -> Rows:
        inner = tensor.open()
        return lambda first, last: _blocks(tensor, inner(first, last))

    return replace(tensor, format="q4_0", open=open_rows, note=NOTE)


def _blocks(tensor: Logical, stored: Array) -> Blocks:
    blocks = find(tensor.format, stored)
    if blocks is None:
        raise ValueError(f"{tensor.name}: changed while it was read")
    return blocks


def find(name: str, stored: Array) -> Blocks | None:
    """q4_0 blocks (n, K / 32) whose values, rounded to format `name`, equal `stored` (n, K); None where there
    are none.

    The largest magnitude of a block is scale * c for some code c in -8 .. 7. Each c is tried, with the
    float16 scales next to the quotient, because the stored value may itself be rounded.
    """
    fmt = FORMATS[name]
    x = fmt.decode(stored).reshape(-1, BLOCK)
    most = np.abs(x).max(axis=1)
    if not np.isfinite(most).all():
        return None
    peak = x[np.arange(len(x)), np.abs(x).argmax(axis=1)]
    scale, codes = np.zeros(len(x), np.float16), np.full(x.shape, 8, np.uint8)
    left = np.flatnonzero(most > 0)
    for code in (-8, 7, -7, 6, -6, 5, -5, 4, -4, 3, -3, 2, -2, 1, -1):
        for step in (0, -1, 1, -2, 2, -3, 3, -4, 4) if len(left) else ():
            tried = _step(peak[left] / np.float32(code), step)
            fits, found = _try(name, x[left], tried)
            scale[left[fits]], codes[left[fits]] = tried[fits], found[fits]
            left = left[~fits]
    if len(left):
        return None
    blocks = np.empty(len(x), FORMATS["q4_0"].dtype)
    blocks["d"], blocks["qs"] = scale, join_nibbles(codes, 16)
    return blocks.reshape(len(stored), -1)


def _step(x: F32, step: int) -> Array:
    """The float16 nearest to x, moved by `step` representable values away from zero."""
    with np.errstate(over="ignore"):
        half = x.astype(np.float16)
    return (half.view(np.int16) + np.int16(step)).view(np.float16)


def _try(name: str, x: F32, scale: Array) -> tuple[Array, Array]:
    """By block: (whether scale * code, rounded to the format, equals x for codes in range, codes + 8)."""
    fmt = FORMATS[name]
    wide = scale.astype(np.float32)[:, None]
    with np.errstate(all="ignore"):
        codes = np.rint(x / wide)
        inside = (codes >= -8) & (codes <= 7)
        back = wide * codes
    encoded = back if fmt.encode is None else fmt.decode(fmt.encode(back, None))
    fits = (inside & (encoded == x)).all(axis=1) & np.isfinite(scale)
    return fits, (np.where(inside, codes, 0) + 8).astype(np.uint8)
