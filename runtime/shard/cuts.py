"""Where each rank's range of a divided dimension begins and ends.

A cut is a number of equal units, and the units of each rank. Every dimension that is divided alike is a
multiple of these units: heads, blocks of a format, rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from satchel.runtime.shard.pieces import Range

ROWS = 16  # a division with many units cuts at multiples of so many: rows of a packed panel


class Cut(NamedTuple):
    """Units of a division, and the range of each rank; ranges overlap where ranks share a KV head."""

    units: int
    ranges: tuple[Range, ...]

    def range(self, rank: int, size: int) -> Range:
        """A rank's range of a dimension of this size."""
        each, mine = size // self.units, self.ranges[rank]
        return Range(mine.start * each, mine.stop * each)

    def imbalance(self, shares: Sequence[float], blocks: Sequence[int] = ()) -> float:
        """The largest part of a rank, as a multiple of its share. blocks: numbers of blocks in a row of the
        weights that are cut by columns; a rank has each block of which it has a part.
        """
        wanted = [share / sum(shares) for share in shares]
        parts = [(r.stop - r.start) / self.units for r in self.ranges]
        for n in blocks:
            whole = (-(-r.stop * n // self.units) - r.start * n // self.units for r in self.ranges)
            parts = [max(part, size / n) for part, size in zip(parts, whole, strict=True)]
        return max(part / share for part, share in zip(parts, wanted, strict=True))


def dealt(units: int, shares: Sequence[float]) -> Cut | None:
    """Units by shares of the ranks, at least one each; None where there are too few."""
    ranks, at, cuts = len(shares), 0.0, [0]
    if units < ranks:
        return None
    step = ROWS if units >= 4 * ROWS * ranks else 1
    for rank, share in enumerate(shares[:-1], 1):
        at += share
        wanted = round(units * at / sum(shares) / step) * step
        cuts.append(min(max(wanted, cuts[-1] + 1), units - (ranks - rank)))
    return Cut(units, tuple(Range(a, b) for a, b in zip(cuts, [*cuts[1:], units], strict=True)))


def by_kv_heads(units: int, kv_heads: int, shares: Sequence[float]) -> Cut | None:
    """As dealt(), for queries whose heads share keys: a rank has whole groups of heads, or heads of a
    single group.
    """
    whole = dealt(common := math.gcd(units, kv_heads), shares)
    ranks = len(shares)
    if whole is not None:
        each = units // common
        return Cut(units, tuple(Range(r.start * each, r.stop * each) for r in whole.ranges))
    if units % kv_heads or ranks <= kv_heads:
        return None
    each, found = units // kv_heads, list[Range]()
    for head in range(kv_heads):
        mine = shares[ranks * head // kv_heads : ranks * (head + 1) // kv_heads]
        inner = dealt(each, mine)
        if inner is None:
            return None
        found += [Range(head * each + r.start, head * each + r.stop) for r in inner.ranges]
    return Cut(units, tuple(found))


def of_keys(queries: Cut, kv_heads: int) -> Cut:
    """The KV heads that each rank's queries attend to."""
    heads = (
        Range(r.start * kv_heads // queries.units, -(-r.stop * kv_heads // queries.units))
        for r in queries.ranges
    )
    return Cut(kv_heads, tuple(heads))
