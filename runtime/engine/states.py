"""A model's states in device memory, as far as the host moves them: blocks of the KV cache, by layer group,
pages of recurrent states, and the token table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from satchel.runtime.compiler.memory import nbytes
from satchel.runtime.device.device import Buffer
from satchel.runtime.engine.lanes import StageThreads
from satchel.runtime.graph import Array, Roots, Type, leaves, toposort
from satchel.runtime.layers.arch import RECURRENT, Cache, table_name, windows_of
from satchel.runtime.ops.op import NONE, op_of
from satchel.runtime.plan import Bucket
from satchel.runtime.weights.residency import StateBlocks

TOKENS = "tokens"
Layouts = Mapping[str, Mapping[str, int]]  # by device


class Paged(NamedTuple):
    """Blocks of a layer's keys or values."""

    device: str
    start: int  # offset of block 0 in the device's state buffer
    size: int  # bytes of a block


class States:
    """buffers: state buffers by device. layouts: by device, the offset of each state in its buffer. lanes: of
    a pipeline, whose steps under way may read or write a block that is moved.
    """

    def __init__(
        self,
        buffers: Mapping[str, Buffer],
        roots: Roots,
        layouts: Layouts,
        cache: Cache,
        lanes: StageThreads | None = None,
    ) -> None:
        self.buffers, self.cache, self._lanes = buffers, cache, lanes
        at = {name: (device, start) for device, layout in layouts.items() for name, start in layout.items()}
        self._tokens = at.get(TOKENS)  # partial graphs have none
        self.paged = paged(roots, layouts)
        self.block_bytes = tuple(sum(part.size for part in group) for group in self.paged)
        self.formats = paged_formats(roots)

    def copy_block(self, old: int, new: int, group: int = 0) -> None:
        """Copies a block in all layers of a group."""
        self._quiet()
        for device, start, size in self.paged[group]:
            self.buffers[device].copy(start + size * new, start + size * old, size)

    def read_block(self, block: int, out: Array, group: int = 0) -> None:
        """Fills `out` (block_bytes[group]) uint8 with a block, layer after layer."""
        self._quiet()
        at = 0
        for device, start, size in self.paged[group]:
            self.buffers[device].read_into(start + size * block, out[at : at + size])
            at += size

    def write_block(self, block: int, data: Array, group: int = 0) -> None:
        """The inverse of read_block."""
        self._quiet()
        at = 0
        for device, start, size in self.paged[group]:
            self.buffers[device].write(start + size * block, data[at : at + size])
            at += size

    def write_tokens(self, slot: int, ids: Sequence[int]) -> None:
        """Writes tokens that the slot did not compute to the token table, from position 0 on."""
        if self._tokens is not None:
            device, start = self._tokens
            at = start + 4 * slot * (self.cache.context + 1)
            write = partial(self.buffers[device].write, at, np.asarray(ids, np.int32))
            if self._lanes is None:
                write()
            else:  # no step under way has this slot
                self._lanes.alone(device, write)

    def _quiet(self) -> None:
        if self._lanes is not None:
            self._lanes.quiet()


def paged(roots: Roots, layouts: Layouts) -> tuple[tuple[Paged, ...], ...]:
    """The paged states of each layer group, in the order of windows_of()."""
    at = {name: (device, start) for device, layout in layouts.items() for name, start in layout.items()}
    return tuple(
        tuple(Paged(*at[name], nbytes(type, Bucket(1, 1)) // _count(type)) for name, type in group)
        for group in grouped(roots)
    )


def keys_and_values(roots: Roots, layouts: Layouts, buffers: Mapping[str, Buffer]) -> dict[str, StateBlocks]:
    """The keys and values of all layers, by the names of their states."""
    pages = zip(windows_of(roots), grouped(roots), paged(roots, layouts), strict=True)
    return {
        name: StateBlocks(buffers[part.device], part.start, part.size, table_name(window))
        for window, group, parts in pages
        if window != RECURRENT
        for (name, _), part in zip(group, parts, strict=True)
    }


def paged_formats(roots: Roots) -> tuple[tuple[str, ...], ...]:
    """The formats of the same states."""
    return tuple(tuple(type.format for _, type in group) for group in grouped(roots))


def grouped(roots: Roots) -> tuple[tuple[tuple[str, Type], ...], ...]:
    """Names and types of the paged states, by layer group."""
    made = ((node, op_of(node)) for node in toposort(roots))
    writers = (node for node, by in made if by is not None and by.alias and by.cache != NONE)
    tables = {n.src[0].name: n.src[-1].name for n in writers}  # the block table is the last source
    states = {n.name: n.type for n in leaves(roots, "state") if n.name in tables}

    def of(window: int) -> tuple[tuple[str, Type], ...]:
        return tuple((n, type) for n, type in states.items() if tables[n] == table_name(window))

    return tuple(of(window) for window in windows_of(roots))


def _count(type: Type) -> int:
    first = type.shape[0]
    return first if isinstance(first, int) else 1
