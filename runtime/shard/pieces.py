"""Pieces of tensors: the part that one rank holds. A piece's name is the tensor's with its ranges, as in
`blk.0.attn_q.weight[0:512]` or, by columns, `blk.0.attn_output.weight[:, 0:512]`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from satchel.quant import FORMATS
from satchel.runtime.graph import Array, Node, Type

NAME = re.compile(r"(?P<tensor>.*)\[(?P<ranges>(?:(?:\d+:\d+|:)(?:, )?)+)\]", re.DOTALL)


class Range(NamedTuple):
    """Entries start .. stop - 1 of an axis."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


class Piece(NamedTuple):
    """The part of a tensor within a range of each axis; None: the whole axis."""

    tensor: str
    ranges: tuple[Range | None, ...] = ()

    @classmethod
    def of(cls, name: str) -> Piece:
        """The piece that a weight's name in a rank's graph stands for."""
        found = NAME.fullmatch(name)
        if found is None:
            return cls(name)
        texts = found["ranges"].split(", ")
        return cls(
            found["tensor"], tuple(None if t == ":" else Range(*map(int, t.split(":"))) for t in texts)
        )

    @property
    def name(self) -> str:
        known = list(self.ranges)
        while known and known[-1] is None:
            known.pop()
        texts = (":" if r is None else f"{r.start}:{r.stop}" for r in known)
        return f"{self.tensor}[{', '.join(texts)}]" if known else self.tensor

    def cut(self, axis: int, range: Range) -> Piece:
        """The part of this piece within a range of one of its axes."""
        ranges = [*self.ranges, *[None] * (axis + 1 - len(self.ranges))]
        outer = ranges[axis]
        start = outer.start if outer is not None else 0
        ranges[axis] = Range(start + range.start, start + range.stop)
        return Piece(self.tensor, tuple(ranges))

    def blocks(self, whole: Array) -> Array:
        """The piece of a tensor's blocks."""
        slices = list(self.slices())
        last = self.ranges[-1] if len(self.ranges) == whole.ndim else None
        if last is not None:
            block = next(f.block for f in FORMATS.values() if f.dtype == whole.dtype)
            slices[-1] = slice(last.start // block, -(-last.stop // block))
        return np.ascontiguousarray(whole[tuple(slices)])

    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(None) if r is None else slice(r.start, r.stop) for r in self.ranges)


def cut_weight(weight: Node, axis: int, range: Range) -> tuple[str, Type]:
    """Name and type of a range of a weight's axis."""
    shape = list(weight.shape)
    shape[axis] = range.size
    return Piece.of(weight.name).cut(axis, range).name, Type(tuple(shape), weight.type.format)
