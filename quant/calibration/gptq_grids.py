"""Where a format's scales, codes and their ranges are, so that GPTQ needs to know no layout: a
block is groups of numbers x = d * unit * code - dmin * low, whatever bits hold them.

All arrays are float32 and stand column first: codes (K, rows), a group's numbers (groups, rows), a block's
(blocks, rows).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from satchel.quant.codebook import join_runs, split_runs
from satchel.quant.format import F32, Blocks, Format
from satchel.quant.formats import q3_k
from satchel.quant.pack import (
    U8,
    join_nibbles,
    join_scales,
    join_top_bits,
    split_nibbles,
    split_scales,
    split_top_bits,
    to_f16,
)


@dataclass(frozen=True, slots=True)
class Parts:
    """Fields of blocks."""

    d: F32  # (blocks, rows)
    dmin: F32  # (blocks, rows)
    unit: F32  # (groups, rows)
    low: F32  # (groups, rows)
    code: F32  # (K, rows)

    def step(self) -> F32:
        """Distance of neighbouring codes, (groups, rows)."""
        return self.unit * np.repeat(self.d, len(self.unit) // len(self.d), axis=0)

    def base(self) -> F32:
        """What is taken off a group's numbers, (groups, rows)."""
        return self.low * np.repeat(self.dmin, len(self.low) // len(self.dmin), axis=0)

    def values(self) -> F32:
        """The numbers, (K, rows)."""
        size = len(self.code) // len(self.unit)
        x = self.code.reshape(len(self.unit), size, -1) * self.step()[:, None] - self.base()[:, None]
        values: F32 = x.reshape(self.code.shape)
        return values


Split = Callable[[Blocks], tuple[Any, Any, Any, Any, Any]]
Join = Callable[[Any, Any, Any, Any, Any, Blocks], None]


@dataclass(frozen=True, slots=True)
class GptqGrid:
    """A format as groups under scales."""

    group: int  # numbers of a group
    codes: tuple[int, int]  # least and largest
    units: tuple[int, int]  # least and largest; equal where a group has no choice
    lows: tuple[int, int]  # least and largest
    signed: bool  # a group's base may have either sign
    split: Split  # blocks -> d, dmin (...), unit, low (..., groups), code (..., block)
    join: Join  # writes these into the fields of blocks

    @property
    def has_units(self) -> bool:
        return self.units[0] < self.units[1]

    @property
    def has_base(self) -> bool:
        return self.lows[1] > 0


def parts(grid: GptqGrid, blocks: Blocks) -> Parts:
    """What blocks (rows, n) hold."""
    rows = len(blocks)
    d, dmin, unit, low, code = (np.asarray(p).astype(np.float32) for p in grid.split(blocks))
    return Parts(*(np.ascontiguousarray(p.reshape(rows, -1).T) for p in (d, dmin, unit, low, code)))


def blocks_of(fmt: Format, grid: GptqGrid, found: Parts) -> Blocks:
    """Blocks (rows, n) that hold these parts; d and dmin must be numbers that f16 can hold."""
    shape = found.d.shape[::-1]
    out = np.zeros(shape, fmt.dtype)
    d, dmin = (to_f16(np.ascontiguousarray(p.T)) for p in (found.d, found.dmin))
    unit, low, code = (
        np.rint(p.T).astype(np.int16).reshape(*shape, -1) for p in (found.unit, found.low, found.code)
    )
    grid.join(d, dmin, unit, low, code, out)
    return out


def _ones(d: Any) -> Any:
    return np.ones((*d.shape, 1), np.float32)


def _bytes(x: Any, offset: int = 0) -> U8:
    found: U8 = (x + offset).astype(np.uint8)
    return found


def _split_q4_k(b: Blocks) -> tuple[Any, ...]:
    return b["d"], b["dmin"], *split_scales(b["scales"]), split_nibbles(b["qs"], 32)


def _join_q4_k(d: Any, dmin: Any, unit: Any, low: Any, code: Any, out: Blocks) -> None:
    out["d"], out["dmin"], out["scales"] = d, dmin, join_scales(_bytes(unit), _bytes(low))
    out["qs"] = join_nibbles(_bytes(code) & 15, 32)


def _split_q5_k(b: Blocks) -> tuple[Any, ...]:
    code = split_nibbles(b["qs"], 32) | split_runs(b["qh"], 1) << 4
    return b["d"], b["dmin"], *split_scales(b["scales"]), code


def _join_q5_k(d: Any, dmin: Any, unit: Any, low: Any, code: Any, out: Blocks) -> None:
    _join_q4_k(d, dmin, unit, low, code, out)
    out["qh"] = join_runs(_bytes(code) >> 4, 1)


def _split_q6_k(b: Blocks) -> tuple[Any, ...]:
    code = (split_nibbles(b["ql"], 64) | split_runs(b["qh"], 2) << 4).astype(np.int8) - 32
    return b["d"], np.zeros(b.shape), b["scales"], np.zeros((*b.shape, 16)), code


def _join_q6_k(d: Any, dmin: Any, unit: Any, low: Any, code: Any, out: Blocks) -> None:
    q = _bytes(code, 32)
    out["d"], out["scales"] = d, unit
    out["ql"], out["qh"] = join_nibbles(q & 15, 64), join_runs(q >> 4, 2)


def _split_q3_k(b: Blocks) -> tuple[Any, ...]:
    unit = q3_k.split_scales(b["scales"]).astype(np.int8) - 32
    code = (split_runs(b["qs"], 2) | split_runs(b["hmask"], 1) << 2).astype(np.int8) - 4
    return b["d"], np.zeros(b.shape), unit, np.zeros((*b.shape, 16)), code


def _join_q3_k(d: Any, dmin: Any, unit: Any, low: Any, code: Any, out: Blocks) -> None:
    q = _bytes(code, 4)
    out["d"], out["scales"] = d, q3_k.join_scales(_bytes(unit, 32))
    out["hmask"], out["qs"] = join_runs(q >> 2, 1), join_runs(q & 3, 2)


def _split_q2_k(b: Blocks) -> tuple[Any, ...]:
    return b["d"], b["dmin"], b["scales"] & 15, b["scales"] >> 4, split_runs(b["qs"], 2)


def _join_q2_k(d: Any, dmin: Any, unit: Any, low: Any, code: Any, out: Blocks) -> None:
    out["d"], out["dmin"], out["scales"] = d, dmin, _bytes(unit) | _bytes(low) << 4
    out["qs"] = join_runs(_bytes(code), 2)


def _split_q4_0(b: Blocks) -> tuple[Any, ...]:
    code = split_nibbles(b["qs"], 16).astype(np.int8) - 8
    return b["d"], np.zeros(b.shape), _ones(b), np.zeros((*b.shape, 1)), code


def _join_q4_0(d: Any, dmin: Any, unit: Any, low: Any, code: Any, out: Blocks) -> None:
    out["d"], out["qs"] = d, join_nibbles(_bytes(code, 8), 16)


def _split_q4_1(b: Blocks) -> tuple[Any, ...]:
    return b["d"], -b["m"], _ones(b), _ones(b), split_nibbles(b["qs"], 16)


def _join_q4_1(d: Any, dmin: Any, unit: Any, low: Any, code: Any, out: Blocks) -> None:
    out["d"], out["m"], out["qs"] = d, -dmin, join_nibbles(_bytes(code), 16)


def _split_q5_0(b: Blocks) -> tuple[Any, ...]:
    code = (split_nibbles(b["qs"], 16) | split_top_bits(b["qh"]) << 4).astype(np.int8) - 16
    return b["d"], np.zeros(b.shape), _ones(b), np.zeros((*b.shape, 1)), code


def _join_q5_0(d: Any, dmin: Any, unit: Any, low: Any, code: Any, out: Blocks) -> None:
    q = _bytes(code, 16)
    out["d"], out["qh"], out["qs"] = d, join_top_bits(q >> 4), join_nibbles(q & 15, 16)


def _split_q5_1(b: Blocks) -> tuple[Any, ...]:
    code = split_nibbles(b["qs"], 16) | split_top_bits(b["qh"]) << 4
    return b["d"], -b["m"], _ones(b), _ones(b), code


def _join_q5_1(d: Any, dmin: Any, unit: Any, low: Any, code: Any, out: Blocks) -> None:
    q = _bytes(code)
    out["d"], out["m"], out["qh"], out["qs"] = d, -dmin, join_top_bits(q >> 4), join_nibbles(q & 15, 16)


def _split_q8_0(b: Blocks) -> tuple[Any, ...]:
    return b["d"], np.zeros(b.shape), _ones(b), np.zeros((*b.shape, 1)), b["qs"]


def _join_q8_0(d: Any, dmin: Any, unit: Any, low: Any, code: Any, out: Blocks) -> None:
    out["d"], out["qs"] = d, code


GRIDS: dict[str, GptqGrid] = {
    "q2_k": GptqGrid(16, (0, 3), (0, 15), (0, 15), False, _split_q2_k, _join_q2_k),
    "q3_k": GptqGrid(16, (-4, 3), (-32, 31), (0, 0), False, _split_q3_k, _join_q3_k),
    "q4_k": GptqGrid(32, (0, 15), (0, 63), (0, 63), False, _split_q4_k, _join_q4_k),
    "q5_k": GptqGrid(32, (0, 31), (0, 63), (0, 63), False, _split_q5_k, _join_q5_k),
    "q6_k": GptqGrid(16, (-32, 31), (-128, 127), (0, 0), False, _split_q6_k, _join_q6_k),
    "q4_0": GptqGrid(32, (-8, 7), (1, 1), (0, 0), False, _split_q4_0, _join_q4_0),
    "q4_1": GptqGrid(32, (0, 15), (1, 1), (1, 1), True, _split_q4_1, _join_q4_1),
    "q5_0": GptqGrid(32, (-16, 15), (1, 1), (0, 0), False, _split_q5_0, _join_q5_0),
    "q5_1": GptqGrid(32, (0, 31), (1, 1), (1, 1), True, _split_q5_1, _join_q5_1),
    "q8_0": GptqGrid(32, (-127, 127), (1, 1), (0, 0), False, _split_q8_0, _join_q8_0),
}
