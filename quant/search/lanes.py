"""Blocks laid out for the search steps in numpy: groups side by side, so that each is a lane of a vector.

Each block is divided by a power of two near its largest number first, which changes no digit and lets float32
do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from satchel.quant.format import F32
from satchel.quant.pack import U8
from satchel.quant.search.scales import F64

WIDE = 32  # groups of a tile
LEAST = -126  # exponent of the least number by whose inverse float32 can be multiplied


@dataclass(frozen=True, slots=True)
class Lanes:
    """Blocks with one group in each lane, padded with zeros."""

    x: F32  # [tiles, size, WIDE]
    w: F32  # weights of the squared errors, like x
    power: F64  # [blocks]: the power of two by which x was divided
    groups: int  # per block

    @property
    def count(self) -> int:
        return len(self.power)

    def each(self, of_block: F64) -> F32:
        """A number of each block, in units of x, for each of its lanes."""
        return self.spread(np.repeat(of_block / self.power, self.groups))

    def spread(self, of_group: F64) -> F32:
        """A number of each group (any shape of blocks * groups) for its lane."""
        out = np.zeros((self.x.shape[0], WIDE), np.float32)
        out.reshape(-1)[: self.count * self.groups] = of_group.reshape(-1)
        return out

    def blocks(self, of_lane: F32) -> F64:
        """Numbers of the lanes [..., tiles, WIDE] as [..., blocks, groups]."""
        flat = of_lane.reshape(*of_lane.shape[:-2], -1)[..., : self.count * self.groups]
        return flat.reshape(*flat.shape[:-1], self.count, self.groups).astype(np.float64)

    def totals(self, sums: F32) -> tuple[F64, F64]:
        """Sums of the lanes [n, tiles, WIDE] added up over each block in order: the first [blocks], and the
        rest.
        """
        added = np.cumsum(self.blocks(sums), axis=-1)[..., -1]
        return added[0], added[1:]

    def codes(self, q: F32) -> U8:
        """Codes [tiles, size, WIDE] below 256 as bytes (blocks, block); a NaN's is 0."""
        size = q.shape[1]
        counted = np.where(np.isnan(q), np.float32(0), q).astype(np.uint8)
        turned = np.ascontiguousarray(counted.transpose(0, 2, 1)).reshape(-1)
        kept: U8 = turned[: self.count * self.groups * size].reshape(self.count, self.groups * size)
        return kept


def lanes(x: F32, share: F32 | None, group: int) -> Lanes:
    """Blocks x (n, block) as lanes, with the weights of their errors, see scales.shares;
    None: all alike. Of a block's peak, a NaN counts as nothing, and an infinity as 1.
    """
    of_block = x.shape[1] // group
    peak = np.fmax.reduce(np.abs(x), axis=1, initial=0)
    exponent = np.maximum(np.where(np.isfinite(peak), np.frexp(peak)[1], 0), LEAST)
    near = x * np.ldexp(np.float32(1), -exponent)[:, None]
    if share is None:
        share = np.ones((1, x.shape[1]), np.float32)
    times = -(-len(x) // len(share))
    w = np.broadcast_to(share, (times, *share.shape)).reshape(-1, group)[: len(x) * of_block]
    return Lanes(_tiles(near.reshape(-1, group)), _tiles(w), np.ldexp(1.0, exponent), of_block)


def _tiles(of_groups: F32) -> F32:
    """(groups, size) as [tiles, size, WIDE]."""
    count, size = of_groups.shape
    missing = -count % WIDE
    if missing:
        of_groups = np.concatenate([of_groups, np.zeros((missing, size), np.float32)])
    return np.ascontiguousarray(of_groups.reshape(-1, WIDE, size).transpose(0, 2, 1))
