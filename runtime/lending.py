"""Weights that the CPU holds, lent to another device for steps of many tokens: a layer's are sent while the
layer before it runs, into one of three buffers, and its products are done there.

The keys and values of such a layer stay with the CPU, and attention with them; so whenever the host is at a
layer, the device is done with the layers before the last one, whose buffer takes what comes next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass

import numpy as np

from satchel.formats.gguf import GGUF
from satchel.runtime.device import WEIGHT, Buffer, Device
from satchel.runtime.packing import Packed
from satchel.runtime.placement.placement import Placement
from satchel.runtime.plan import WeightPlace, align_up
from satchel.runtime.program import DeviceMemory
from satchel.runtime.weights import DeviceWeights, aligned

SLOTS = 3  # one that is read, one that is filled, one that may still be read


@dataclass(frozen=True, slots=True)
class Loan:
    """What is lent: to which device, names of the tensors of each layer, in order, and from how many tokens
    of a step on. placement: the placement of such a step. room: bytes of the buffers on the device.
    """

    device: str
    layers: Mapping[str, tuple[str, ...]]
    least: int
    placement: Placement
    room: int


@dataclass(frozen=True, slots=True)
class Offer:
    """A loan of a file's weights, before there is memory for it."""

    gguf: GGUF
    loan: Loan

    def taken(self, device: Device, packed: Mapping[str, Packed]) -> Lender:
        """packed: weights that the device keeps in its own order."""
        return Lender(self.gguf, self.loan, device, packed)


class _Both(DeviceWeights):
    """A device's own weights, and those that are lent."""

    def __init__(
        self, own: DeviceWeights, places: Mapping[str, WeightPlace], buffers: Mapping[str, Buffer]
    ) -> None:
        super().__init__()
        self.buffers = {**own.buffers, **buffers}
        self._own, self._lent = own, places

    def place(self, name: str) -> WeightPlace:
        return self._lent[name] if name in self._lent else self._own.place(name)


class Lender:
    """The buffers on the device, and who fills them. packed: weights that the device keeps in its own order.
    A Pager: enter() is called before each segment of the device.
    """

    def __init__(self, gguf: GGUF, loan: Loan, device: Device, packed: Mapping[str, Packed]) -> None:
        self.gguf, self.loan, self.packed = gguf, loan, packed
        self._order = list(loan.layers)
        self._places = {
            name: place
            for i, label in enumerate(self._order)
            for name, place in self._lay_out(loan.layers[label], i % SLOTS).items()
        }
        sizes = [0] * min(SLOTS, len(self._order))
        for name, place in self._places.items():
            slot = int(place.buffer.rpartition(".")[2])
            sizes[slot] = max(sizes[slot], place.offset + self._size(name))
        self.buffers = {f"weights.lent.{i}": device.alloc(size, WEIGHT) for i, size in enumerate(sizes)}
        self._filled: dict[int, str] = {}  # by slot, the layer that it holds or is about to
        self._coming: dict[str, Future[None]] = {}
        self._pool = ThreadPoolExecutor(1, "satchel-lend")

    def _size(self, name: str) -> int:
        return self.packed[name].size if name in self.packed else self.gguf.tensors[name].nbytes

    def _lay_out(self, names: Sequence[str], slot: int) -> dict[str, WeightPlace]:
        found, at = {}, 0
        for name in names:
            packed = self.packed[name].size if name in self.packed else 0
            found[name] = WeightPlace(f"weights.lent.{slot}", at, packed)
            at = align_up(at + self._size(name))
        return found

    def memory(self, own: DeviceMemory) -> DeviceMemory:
        """What the device has for its own layers, and what is lent beside it."""
        both = copy(own)
        both.weights = _Both(own.weights, self._places, self.buffers)
        return both

    def enter(self, label: str) -> None:
        """A segment of this layer begins now: its weights are there, the next layer's on their way."""
        if label not in self.loan.layers:
            return
        at = self._order.index(label)
        if not at:  # the step before may still be under way on the device
            self.buffers["weights.lent.0"].read_into(0, np.empty(1, np.uint8))
        self._send(at)
        try:
            self._coming[label].result()
        except BaseException:
            self._filled.clear()  # nothing is known of the buffers
            raise
        if at + 1 < len(self._order):
            self._send(at + 1)

    def _send(self, at: int) -> None:
        slot, label = at % SLOTS, self._order[at]
        if self._filled.get(slot) != label:
            self._filled[slot] = label
            self._coming[label] = self._pool.submit(self._fill, label)

    def _fill(self, label: str) -> None:
        for name in self.loan.layers[label]:
            place, raw = self._places[name], aligned(self.gguf.raw(name).reshape(-1))
            buffer, packed = self.buffers[place.buffer], self.packed.get(name)
            if packed:
                matrices = (packed.stack, packed.rows, packed.columns)
                buffer.pack(place.offset, packed.format, matrices, raw)
            else:
                buffer.write(place.offset, raw)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for buffer in self.buffers.values():
            buffer.close()
