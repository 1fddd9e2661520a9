"""Weight prefetch: for steps of many tokens, a GPU computes with weights that are on the CPU: of the CPU's
own layers, whose keys, values and attention stay there, and of experts of the GPU's own layers. A layer's
weights are sent while the layer before it runs, into one of two buffers.

A layer's segment runs after its weights have arrived, and weights are sent to a buffer after the segment that
read it: the device waits for both (HAL_PREFETCH of hal.h), so the host goes ahead. Where there is memory for
it the file's pages are locked, and the device copies from them at the speed of its link: the next layer's
copies are queued before a layer begins, because the host then waits for that layer's values. Otherwise a
thread copies the weights into staging memory first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import inf
from mmap import PAGESIZE

from satchel.errors import DeviceError
from satchel.formats.gguf import GGUF
from satchel.runtime.compiler.context import Context
from satchel.runtime.device.device import PREFETCH, Buffer, Device, PinnedMemory
from satchel.runtime.graph import Type
from satchel.runtime.log import LOG
from satchel.runtime.placement.placement import Placement
from satchel.runtime.plan import WeightPlace, align_up
from satchel.runtime.weights.packing import PackedWeight, Places
from satchel.runtime.weights.residency import Over, PackedOn, Residency, StepWeights, Targets, WeightsOn
from satchel.runtime.weights.weights import DeviceWeights, aligned, write_weight

SLOTS = 2  # buffers: one being read, one being filled


@dataclass(frozen=True, slots=True)
class PrefetchPlan:
    """Which weights `device` prefetches."""

    device: str
    layers: Mapping[str, tuple[str, ...]]  # names of the tensors of each layer, in order
    min_tokens: int  # smallest step that uses the prefetch
    placement: Placement  # of such a step
    nbytes: int  # of the buffers on the device
    sent: int  # bytes of all layers
    pinned: bool = False  # the file's pages are locked in memory

    @property
    def gain(self) -> float:
        """Predicted speedup from which on it is used. Without locked pages a thread copies all bytes, at a
        speed that depends on what else the host does.
        """
        return 1.25 if self.pinned else 2.0


class WeightPrefetcher(Over):
    """Weights on the CPU that another device computes with in long steps: the buffers there, and the thread
    that fills them.
    """

    def __init__(self, inner: Residency, gguf: GGUF, plan: PrefetchPlan) -> None:
        super().__init__(inner)
        self.gguf, self.plan, self.min_tokens = gguf, plan, float(plan.min_tokens)
        self.packed: dict[str, PackedWeight] = {}  # weights of the layers that the device packs
        self._order = list(plan.layers)
        self._weights = DeviceWeights()
        self._filled: dict[int, str] = {}  # by slot, the layer that it holds or is being filled with
        self._coming: dict[str, Future[None]] = {}
        self._pinned: list[PinnedMemory] = []
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
        cached = {label: n for label, n in found.expert_cache.items() if label not in self.plan.layers}
        return replace(found, wanted=self.plan.placement, streamed=(self.plan.device,), expert_cache=cached)

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
        self._weights.buffers = {name: device.alloc(size, PREFETCH) for name, size in sizes.items()}
        if self.plan.pinned:
            self._pin(device)
        return found

    def _pin(self, device: Device) -> None:
        """Locks the pages of the file that are sent. Where that fails, all go through staging memory."""
        try:
            for part, start, end in self._ranges():
                self._pinned.append(device.pin(self.gguf.parts[part].mmap, start, end - start))
        except DeviceError as error:
            LOG.warning("prefetched weights are copied on the way to %s: %s", device.name, error)
            self._unpin()

    def _ranges(self) -> Sequence[tuple[int, int, int]]:
        """(part of the file, first byte, end) of the whole pages that hold the weights, in order."""
        found: list[tuple[int, int, int]] = []
        infos = (self.gguf.tensors[name] for names in self.plan.layers.values() for name in names)
        for info in sorted(infos, key=lambda info: (info.part, info.offset)):
            start = info.offset // PAGESIZE * PAGESIZE
            end = min(align_up(info.offset + info.nbytes, PAGESIZE), self.gguf.parts[info.part].size)
            if found and found[-1][0] == info.part and start <= found[-1][2]:
                start, end = found[-1][1], max(end, found.pop()[2])
            found.append((info.part, start, end))
        return found

    def _unpin(self) -> None:
        for memory in self._pinned:
            memory.close()
        self._pinned.clear()

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
        """Called when a segment of this layer begins: sends its weights, and the next layer's after them."""
        if label not in self.plan.layers:
            return
        at = self._order.index(label)
        try:
            self._send(at)
            if label in self._coming:
                self._coming[label].result()
            if at + 1 < len(self._order):
                self._send(at + 1)
        except BaseException:
            self._filled.clear()  # the buffers' contents are unknown
            raise

    def _send(self, at: int) -> None:
        slot, label = at % SLOTS, self._order[at]
        if self._filled.get(slot) == label:
            return
        self._filled[slot] = label
        if self._pinned:
            self._fill(label)  # it only queues copies
        else:
            self._coming[label] = self._pool.submit(self._fill, label)

    def _fill(self, label: str) -> None:
        for name in self.plan.layers[label]:
            place, raw = self._weights.place(name), aligned(self.gguf.raw(name).reshape(-1))
            write_weight(self.buffers[place.buffer], place.offset, raw, self.packed.get(name))

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for buffer in self.buffers.values():
            buffer.close()
        self._unpin()
        self._weights = DeviceWeights()
        self.inner.close()
