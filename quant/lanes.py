"""Blocks laid out for the search steps: groups side by side, so that each is a lane of a vector.

Each block is divided by a power of two near its largest number first, which changes no digit and lets float32
do.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from satchel.quant.format import F32
from satchel.quant.pack import U8, rows
from satchel.quant.scales import F64
from satchel.quant.search_loops import LANES
from satchel.quant.steps import step

LEAST = -126  # exponent of the least number by whose inverse float32 can be multiplied


@dataclass(frozen=True, slots=True)
class Lanes:
    """x, w: [tiles, size, LANES], a group in each lane, filled up with zeros. power [blocks]: what x was
    divided by. lead: leading shape with the block count. groups: of a block.
    """

    x: F32
    w: F32
    power: F64
    lead: tuple[int, ...]
    groups: int

    @property
    def count(self) -> int:
        return len(self.power)

    def each(self, of_block: F64) -> F32:
        """A number of each block, in units of x, for each of its lanes."""
        return self.spread(np.repeat(of_block / self.power, self.groups))

    def spread(self, of_group: F64) -> F32:
        """A number of each group (any shape of blocks * groups) for its lane."""
        out = np.zeros((self.x.shape[0], LANES), np.float32)
        out.reshape(-1)[: self.count * self.groups] = of_group.reshape(-1)
        return out

    def blocks(self, of_lane: F32) -> F64:
        """Numbers of the lanes [..., tiles, LANES] as [..., blocks, groups]."""
        flat = of_lane.reshape(*of_lane.shape[:-2], -1)[..., : self.count * self.groups]
        return flat.reshape(*flat.shape[:-1], self.count, self.groups).astype(np.float64)

    def totals(self, sums: F32) -> tuple[F64, F64]:
        """Sums of the lanes [n, tiles, LANES] added up over each block: the first [blocks], and the rest."""
        added = self.blocks(sums).sum(axis=-1)
        return added[0], added[1:]

    def codes(self, q: F32) -> U8:
        """Codes [tiles, size, LANES] as bytes (*lead, block)."""
        size = q.shape[1]
        turned = np.ascontiguousarray(q.astype(np.int8).transpose(0, 2, 1)).view(np.uint8).reshape(-1)
        kept: U8 = turned[: self.count * self.groups * size].reshape(*self.lead, self.groups * size)
        return kept


def lanes(x: F32, importance: F32 | None, block: int, group: int) -> Lanes:
    """x (..., n * block) as lanes. The weight of an error is the importance of its column, in shares of its
    block's largest, but no less than a ten-millionth of that; 1 where there is none.
    """
    blocks = rows(x, block)
    flat = blocks.reshape(-1, block)
    peak = np.maximum(flat.max(axis=1, initial=0), -flat.min(axis=1, initial=0))
    exponent = np.maximum(np.frexp(peak)[1], LEAST)
    near = np.empty((-(-len(flat) * (block // group) // LANES), group, LANES), np.float32)
    step("tile")(flat, np.ldexp(np.float32(1), -exponent), near)
    w = _equal(near.shape) if importance is None else _weights(importance, blocks, group)
    return Lanes(near, w, np.ldexp(1.0, exponent), blocks.shape[:-1], block // group)


@functools.lru_cache(maxsize=4)
def _equal(shape: tuple[int, ...]) -> F32:
    """Weights of 1, which nobody changes: made once for the blocks of a thread after the other."""
    return np.ones(shape, np.float32)


def _weights(importance: F32, blocks: F32, group: int) -> F32:
    """The importance of each column as [tiles, size, LANES] for blocks (..., n, block)."""
    column = np.asarray(importance, np.float64).reshape(-1, blocks.shape[-1])
    top = column.max(axis=1, keepdims=True)
    share = np.maximum(column / np.where(top > 0, top, 1.0), np.where(top > 0, 1e-7, 1.0)).astype(np.float32)
    return _tiles(np.broadcast_to(share, (*blocks.shape[:-2], *share.shape)).reshape(-1, group))


def _tiles(of_groups: F32) -> F32:
    """(groups, size) as [tiles, size, LANES]."""
    count, size = of_groups.shape
    missing = -count % LANES
    if missing:
        of_groups = np.concatenate([of_groups, np.zeros((missing, size), np.float32)])
    return np.ascontiguousarray(of_groups.reshape(-1, LANES, size).transpose(0, 2, 1))
