"""Weight prefetch: for steps of many tokens, another device computes layers whose weights are on the CPU. A
layer's weights are sent while the layer before it runs, into one of three buffers.

Keys, values and attention of such a layer stay on the CPU. So whenever the host reaches a layer, the device
has finished the layers before the last one, and their buffer is free for the next weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from satchel.formats.gguf import GGUF
from satchel.runtime.compiler.context import Context
from satchel.runtime.device.device import WEIGHT, Buffer, Device
from satchel.runtime.graph import Type
from satchel.runtime.placement.placement import Placement
from satchel.runtime.plan import WeightPlace, align_up
from satchel.runtime.weights.packing import PackedWeight, Places
from satchel.runtime.weights.residency import Over, PackedOn, Residency, StepWeights, Targets, WeightsOn
from satchel.runtime.weights.weights import DeviceWeights, aligned, write_weight

SLOTS = 3  # buffers: one being read, one being filled, one that may still be read


@dataclass(frozen=True, slots=True)
class PrefetchPlan:
    """Which weights `device` prefetches."""

    device: str
    layers: Mapping[str, tuple[str, ...]]  # names of the tensors of each layer, in order
    min_tokens: int  # smallest step that uses the prefetch
    placement: Placement  # of such a step
    nbytes: int  # of the buffers on the device


class WeightPrefetcher(Over):
    """Weights of the CPU's layers that another device computes with in long steps: the buffers there, and the
    thread that fills them.
    """

    def __init__(self, inner: Residency, gguf: GGUF, plan: PrefetchPlan) -> None:
        super().__init__(inner)
        self.gguf, self.plan, self.min_tokens = gguf, plan, float(plan.min_tokens)
        self.packed: dict[str, PackedWeight] = {}  # weights of the layers that the device packs
        self._order = list(plan.layers)
        self._weights = DeviceWeights()
        self._filled: dict[int, str] = {}  # by slot, the layer that it holds or is being filled with
        self._coming: dict[str, Future[None]] = {}
        self._pool = ThreadPoolExecutor(1, "satchel-prefetch")

    @property
    def buffers(self) -> Mapping[str, Buffer]:
        return self._weights.buffers

    def targets(self, devices: Sequence[Device], types: Mapping[str, Type]) -> Targets:
        found = self.inner.targets(devices, types)
        names = {name for layer in self.plan.layers.values() for name in layer}
        self.packed = {n: p for n, p in found[self.plan.device].packed.items() if n in names}
        return found

    def variant(self, tokens: int) -> int:
        return self.plan.min_tokens if tokens >= self.min_tokens else self.inner.variant(tokens)

    def context(self, context: Context, tokens: int) -> Context:
        found = self.inner.context(context, tokens)
        if tokens < self.min_tokens:
            return found
        return replace(found, wanted=self.plan.placement, streamed=(self.plan.device,))

    def nbytes(self, device: str) -> int:
        return self.inner.nbytes(device) + self.plan.nbytes * (device == self.plan.device)

    def load(self, devices: Sequence[Device], packed: PackedOn) -> WeightsOn:
        found = self.inner.load(devices, packed)
        device = next((d for d in devices if d.name == self.plan.device), None)
        if device is None:
            self.min_tokens = inf  # the device has no part of the model
            return found
        places = {
            name: place
            for i, label in enumerate(self._order)
            for name, place in self._lay_out(self.plan.layers[label], i % SLOTS).items()
        }
        sizes: dict[str, int] = {}
        for name, place in places.items():
            sizes[place.buffer] = max(sizes.get(place.buffer, 0), place.offset + self._size(name))
        self._weights = DeviceWeights(Places(places))
        self._weights.buffers = {name: device.alloc(size, WEIGHT) for name, size in sizes.items()}
        return found

    def steps(self, tokens: int, loaded: WeightsOn) -> StepWeights:
        found, name = self.inner.steps(tokens, loaded), self.plan.device
        if tokens < self.min_tokens:
            return found
        both = {name: found.devices[name].overlaid(self._weights)}
        return replace(found, devices={**found.devices, **both}, pagers={**found.pagers, name: self.enter})

    def _size(self, name: str) -> int:
        return self.packed[name].size if name in self.packed else self.gguf.tensors[name].nbytes

    def _lay_out(self, names: Sequence[str], slot: int) -> dict[str, WeightPlace]:
        found, at = {}, 0
        for name in names:
            packed = self.packed[name].size if name in self.packed else 0
            found[name] = WeightPlace(f"weights.prefetch.{slot}", at, packed)
            at = align_up(at + self._size(name))
        return found

    def enter(self, label: str) -> None:
        """Called when a segment of this layer begins: waits for its weights and starts sending the next
        layer's.
        """
        if label not in self.plan.layers:
            return
        at = self._order.index(label)
        if not at:  # the step before may still run on the device
            self.buffers["weights.prefetch.0"].read_into(0, np.empty(1, np.uint8))
        self._send(at)
        try:
            self._coming[label].result()
        except BaseException:
            self._filled.clear()  # the buffers' contents are unknown
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
            place, raw = self._weights.place(name), aligned(self.gguf.raw(name).reshape(-1))
            write_weight(self.buffers[place.buffer], place.offset, raw, self.packed.get(name))

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for buffer in self.buffers.values():
            buffer.close()
        self._weights = DeviceWeights()
        self.inner.close()
