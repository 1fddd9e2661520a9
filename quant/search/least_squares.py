"""Scale searches of the weight encoders: least weighted squared error between a row and its blocks' decoded
values.

Each search is one function (affine_loops.py, scale_loops.py) that numba compiles where it can be imported,
else the same in numpy (numpy_steps.py, far slower); both give the same bits. The only scales ever tried are
ones that the format can store. Method: for each group try a few scales, solve least squares for each set of
codes (as in the K-quants of ggml), then quantize the scales, and improve scales and codes in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from satchel.quant.format import F32
from satchel.quant.pack import F16, U8, quietly, rows, to_f16
from satchel.quant.search.scales import F64, shares
from satchel.quant.search.steps import step

ROUNDS = 2  # of improving scales and codes in turn; a third changes the error by less than 0.2 %
# Steps that a group's range is cut into, or its extreme lies from zero, more or fewer than its codes have.
# Under equal weights few of them are as good as many (within 0.2 %), under unequal ones they are not (4 %).
FEW = np.linspace(-1.0, 1.0, 9, dtype=np.float32)
MANY = np.linspace(-1.2, 1.2, 25, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Affine:
    """Blocks of eight groups of 32: d, dmin (...); scale, low (..., 8) below 64; q (..., 256)."""

    d: F16
    dmin: F16
    scale: U8
    low: U8
    q: U8


@dataclass(frozen=True, slots=True)
class Symmetric:
    """Blocks of sixteen groups of 16: d (...); scale (..., 16) signed; q (..., 256) with the offset added."""

    d: F16
    scale: npt.NDArray[np.int8]
    q: U8


def _tries(importance: F32 | None, steps: int) -> F32:
    return np.float32(steps) + (FEW if importance is None else MANY)


def as_f16(x: F64, lead: tuple[int, ...]) -> F16:
    """Scales of blocks as f16."""
    return to_f16(x.astype(np.float32)).reshape(lead)


def _blocks(x: F32, importance: F32 | None, block: int) -> tuple[tuple[int, ...], F32, F32 | None]:
    """Leading shape with the block count, then blocks (n, block) and the shares of their weights, if any."""
    blocks = rows(x, block)
    share = None if importance is None else shares(importance, block)
    return blocks.shape[:-1], blocks.reshape(-1, block), share


@quietly
def symmetric(x: F32, importance: F32 | None, zero: int, block: int = 32) -> tuple[F16, U8]:
    """x = d * (q - zero), q < 2 * zero, in blocks: d (...) and q (..., block)."""
    lead, blocks, share = _blocks(x, importance, block)
    d, q = step("symmetric")(blocks, share, zero, _tries(importance, -zero))
    return as_f16(d, lead), q.reshape(*lead, block)


@quietly
def affine(x: F32, importance: F32 | None, top: int) -> tuple[F16, F16, U8]:
    """x = d * q + m, q <= top, in blocks of 32: d, m (...) and q (..., 32)."""
    lead, blocks, share = _blocks(x, importance, 32)
    d, m, q = step("affine")(blocks, share, top, np.float32(top) + MANY)
    return as_f16(d, lead), as_f16(m, lead), q.reshape(*lead, 32)


@quietly
def affine_super(x: F32, importance: F32 | None, top: int) -> Affine:
    """x = (d * scale) * q - (dmin * low), q <= top, 6-bit scale and low (q4_k, q5_k)."""
    lead, blocks, share = _blocks(x, importance, 256)
    d, dmin, scale, low, q = step("affine_super")(blocks, share, top, _tries(importance, top), ROUNDS)
    fields = (scale.reshape(*lead, 8), low.reshape(*lead, 8), q.reshape(*lead, 256))
    return Affine(as_f16(d, lead), as_f16(dmin, lead), *fields)


@quietly
def symmetric_super(x: F32, importance: F32 | None, zero: int) -> Symmetric:
    """x = (d * scale) * (q - zero), q < 2 * zero, signed 8-bit scale, groups of 16 (q6_k)."""
    lead, blocks, share = _blocks(x, importance, 256)
    d, scale, q = step("symmetric_super")(blocks, share, zero, _tries(importance, -zero), ROUNDS)
    return Symmetric(as_f16(d, lead), scale.reshape(*lead, 16), q.reshape(*lead, 256))
