"""Weight prefetch: for steps of many tokens another device computes layers whose weights the CPU holds. A
layer's weights are sent while the layer before it runs, into one of three buffers, and its products are done
there.

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
from satchel.runtime.device.device import WEIGHT, Buffer, Device
from satchel.runtime.engine.program import DeviceMemory
from satchel.runtime.placement.placement import Placement
from satchel.runtime.plan import WeightPlace, align_up
from satchel.runtime.weights.packing import PackedWeight
from satchel.runtime.weights.weights import DeviceWeights, aligned

SLOTS = 3  # one that is read, one that is filled, one that may still be read


@dataclass(frozen=True, slots=True)
class PrefetchPlan:
    """What `device` prefetches: names of the tensors of each layer, in order, for steps of `min_tokens` and
    more. placement: the placement of such a step. nbytes: of the buffers on the device.
    """

    device: str
    layers: Mapping[str, tuple[str, ...]]
    min_tokens: int
    placement: Placement
    nbytes: int


@dataclass(frozen=True, slots=True)
class PendingPrefetch:
    """A prefetch of a file's weights, before its buffers are reserved."""

    gguf: GGUF
    plan: PrefetchPlan

    def open(self, device: Device, packed: Mapping[str, PackedWeight]) -> WeightPrefetcher:
        """packed: weights that the device keeps in its own order."""
        return WeightPrefetcher(self.gguf, self.plan, device, packed)


class _WithPrefetched(DeviceWeights):
    """A device's own weights, and the prefetched ones."""

    def __init__(
        self, own: DeviceWeights, places: Mapping[str, WeightPlace], buffers: Mapping[str, Buffer]
    ) -> None:
        super().__init__()
        self.buffers = {**own.buffers, **buffers}
        self._own, self._prefetched = own, places

    def place(self, name: str) -> WeightPlace:
        return self._prefetched[name] if name in self._prefetched else self._own.place(name)


class WeightPrefetcher:
    """The buffers on the device, and the thread that fills them. packed: weights that the device keeps in its
    own order. A Pager: enter() is called before each segment of the device.
    """

    def __init__(
        self, gguf: GGUF, plan: PrefetchPlan, device: Device, packed: Mapping[str, PackedWeight]
    ) -> None:
        self.gguf, self.plan, self.packed = gguf, plan, packed
        self._order = list(plan.layers)
        self._places = {
            name: place
            for i, label in enumerate(self._order)
            for name, place in self._lay_out(plan.layers[label], i % SLOTS).items()
        }
        sizes = [0] * min(SLOTS, len(self._order))
        for name, place in self._places.items():
            slot = int(place.buffer.rpartition(".")[2])
            sizes[slot] = max(sizes[slot], place.offset + self._size(name))
        self.buffers = {f"weights.prefetch.{i}": device.alloc(size, WEIGHT) for i, size in enumerate(sizes)}
        self._filled: dict[int, str] = {}  # by slot, the layer that it holds or is about to
        self._coming: dict[str, Future[None]] = {}
        self._pool = ThreadPoolExecutor(1, "satchel-prefetch")

    def _size(self, name: str) -> int:
        return self.packed[name].size if name in self.packed else self.gguf.tensors[name].nbytes

    def _lay_out(self, names: Sequence[str], slot: int) -> dict[str, WeightPlace]:
        found, at = {}, 0
        for name in names:
            packed = self.packed[name].size if name in self.packed else 0
            found[name] = WeightPlace(f"weights.prefetch.{slot}", at, packed)
            at = align_up(at + self._size(name))
        return found

    def memory(self, own: DeviceMemory) -> DeviceMemory:
        """The device's memory for its own layers, and the prefetched weights beside it."""
        both = copy(own)
        both.weights = _WithPrefetched(own.weights, self._places, self.buffers)
        return both

    def enter(self, label: str) -> None:
        """A segment of this layer begins now: its weights are there, the next layer's on their way."""
        if label not in self.plan.layers:
            return
        at = self._order.index(label)
        if not at:  # the step before may still be under way on the device
            self.buffers["weights.prefetch.0"].read_into(0, np.empty(1, np.uint8))
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
        for name in self.plan.layers[label]:
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
