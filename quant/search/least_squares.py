"""Scale searches of the weight encoders: least weighted squared error between a row and its blocks' decoded
values.

searches.py says what each search gives; C computes it as a whole, numba its steps. The only scales ever tried
are ones that the format can store. Method: for each group try a few scales, solve least squares for each set
of codes (as in the K-quants of ggml), then quantize the scales, and improve scales and codes in turn. Where
groups have few bits for their scales, the best unit of a group is often not the one nearest to its best free
scale, so every unit (and every low) is tried, not only the neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from satchel.quant.format import F32
from satchel.quant.native.compiled import whole
from satchel.quant.pack import F16, U8, quietly, rows
from satchel.quant.search import searches
from satchel.quant.search.scales import F64, as_f16, shares

ROUNDS = 2  # of improving scales and codes in turn; a third changes the error by less than 0.2 %
LOW_ROUNDS = 3  # where every unit is tried; more rounds, or more starts, lower the error by less than 1 %
# Steps that a group's range is cut into, or its extreme lies from zero, more or fewer than its codes have.
# Under equal weights few of them are as good as many (within 0.2 %), under unequal ones they are not (4 %).
FEW = np.linspace(-1.0, 1.0, 9, dtype=np.float32)
MANY = np.linspace(-1.2, 1.2, 25, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Affine:
    """Blocks of 256: d, dmin (...); scale, low (..., groups); q (..., 256)."""

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


def _blocks(x: F32, importance: F32 | None, block: int) -> tuple[tuple[int, ...], F32, F32 | None]:
    """Leading shape with the block count, then blocks (n, block) and the shares of their weights, if any."""
    blocks = rows(x, block)
    share = None if importance is None else shares(importance, block)
    return blocks.shape[:-1], blocks.reshape(-1, block), share


def _bytes(count: int, width: int) -> U8:
    return np.empty((count, width), np.uint8)


@quietly
def symmetric(x: F32, importance: F32 | None, zero: int, block: int = 32) -> tuple[F16, U8]:
    """x = d * (q - zero), q < 2 * zero, in blocks: d (...) and q (..., block)."""
    lead, blocks, share = _blocks(x, importance, block)
    d, q = np.empty(len(blocks)), _bytes(*blocks.shape)
    whole(searches.symmetric)(blocks, share, zero, _tries(importance, -zero), d, q)
    return as_f16(d, lead), q.reshape(*lead, block)


@quietly
def affine(x: F32, importance: F32 | None, top: int) -> tuple[F16, F16, U8]:
    """x = d * q + m, q <= top, in blocks of 32: d, m (...) and q (..., 32)."""
    lead, blocks, share = _blocks(x, importance, 32)
    d, m, q = np.empty(len(blocks)), np.empty(len(blocks)), _bytes(*blocks.shape)
    whole(searches.affine)(blocks, share, top, np.float32(top) + MANY, d, m, q)
    return as_f16(d, lead), as_f16(m, lead), q.reshape(*lead, 32)


@quietly
def affine_super(x: F32, importance: F32 | None, top: int) -> Affine:
    """x = (d * scale) * q - (dmin * low), q <= top, 6-bit scale and low, in groups of 32 (q4_k, q5_k)."""
    lead, blocks, share = _blocks(x, importance, 256)
    d, dmin, scale, low, q = _affine_fields(len(blocks), 8)
    tries = _tries(importance, top)
    whole(searches.affine_super)(blocks, share, top, tries, ROUNDS, d, dmin, scale, low, q)
    return _affine(lead, d, dmin, scale, low, q)


@quietly
def affine_low(x: F32, importance: F32 | None) -> Affine:
    """x = (d * scale) * q - (dmin * low), q < 4, in groups of 16; scale and low (..., 16) below 16 (q2_k)."""
    lead, blocks, share = _blocks(x, importance, 256)
    d, dmin, scale, low, q = _affine_fields(len(blocks), 16)
    whole(searches.affine_low)(blocks, share, np.float32(3) + MANY, LOW_ROUNDS, d, dmin, scale, low, q)
    return _affine(lead, d, dmin, scale, low, q)


def _affine_fields(count: int, groups: int) -> tuple[F64, F64, U8, U8, U8]:
    scale, low, q = _bytes(count, groups), _bytes(count, groups), _bytes(count, 256)
    return np.empty(count), np.empty(count), scale, low, q


def _affine(lead: tuple[int, ...], d: F64, dmin: F64, scale: U8, low: U8, q: U8) -> Affine:
    fields = (scale.reshape(*lead, scale.shape[1]), low.reshape(*lead, low.shape[1]), q.reshape(*lead, 256))
    return Affine(as_f16(d, lead), as_f16(dmin, lead), *fields)


@quietly
def symmetric_super(x: F32, importance: F32 | None, zero: int) -> Symmetric:
    """x = (d * scale) * (q - zero), q < 2 * zero, signed 8-bit scale, groups of 16 (q6_k)."""
    lead, blocks, share = _blocks(x, importance, 256)
    d, scale, q = np.empty(len(blocks)), np.empty((len(blocks), 16), np.int8), _bytes(len(blocks), 256)
    tries = _tries(importance, -zero)
    whole(searches.symmetric_super)(blocks, share, zero, tries, ROUNDS, d, scale, q)
    return Symmetric(as_f16(d, lead), scale.reshape(*lead, 16), q.reshape(*lead, 256))


@quietly
def symmetric_low(x: F32, importance: F32 | None) -> Symmetric:
    """x = (d * scale) * (q - 4), q < 8, in groups of 16; scale (..., 16) from -32 to 31 (q3_k)."""
    lead, blocks, share = _blocks(x, importance, 256)
    d, scale, q = np.empty(len(blocks)), np.empty((len(blocks), 16), np.int8), _bytes(len(blocks), 256)
    whole(searches.symmetric_low)(blocks, share, np.float32(-4) + MANY, LOW_ROUNDS, d, scale, q)
    return Symmetric(as_f16(d, lead), scale.reshape(*lead, 16), q.reshape(*lead, 256))
