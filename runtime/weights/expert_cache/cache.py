"""The expert cache at run time: which experts a GPU holds, and how that changes.

A slot is emptied between two steps, filled by a thread while steps run that do not read it, and used from the
next step on. So no plan reads a slot that is being written, and each expert is computed by one device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from satchel.errors import DeviceError
from satchel.formats.gguf import GGUF
from satchel.runtime.compiler.context import Context
from satchel.runtime.compiler.split_experts import part_table, rest_table
from satchel.runtime.device.device import WEIGHT, Buffer, Device
from satchel.runtime.device.lost import DeviceLost
from satchel.runtime.graph import Array, Type
from satchel.runtime.log import LOG
from satchel.runtime.plan import WeightPlace
from satchel.runtime.weights.expert_cache.layout import BUFFER, CACHED, ExpertCacheLayout
from satchel.runtime.weights.expert_cache.usage import ExpertUsage, Replacement
from satchel.runtime.weights.packing import PackedWeight, Places
from satchel.runtime.weights.residency import Over, PackedOn, Residency, StepWeights, Targets, WeightsOn
from satchel.runtime.weights.weights import DeviceWeights, write_experts

STEP_BYTES = 32 << 20  # most bytes that are sent per step; a single expert may be larger


class ExpertCache(Over):
    """Experts that another device holds beside the host. load(), picked() and between_steps() are called from
    one thread.
    """

    def __init__(
        self, inner: Residency, gguf: GGUF, layout: ExpertCacheLayout, step_bytes: int = STEP_BYTES
    ) -> None:
        super().__init__(inner)
        self.gguf, self.layout, self.step_bytes = gguf, layout, step_bytes
        self.usage = {label: ExpertUsage(x.experts, x.count) for label, x in self.layout.layers.items()}
        self.moved = 0  # bytes sent after the initial experts
        self._buffers: dict[str, Buffer] = {}
        self._places: dict[str, dict[str, WeightPlace]] = {}
        self._packed: dict[str, PackedWeight] = {}
        self._coming: tuple[Future[None], list[tuple[str, Replacement]]] | None = None
        self._pool = ThreadPoolExecutor(1, "satchel-expert-cache")
        for label, layer in self.layout.layers.items():
            self.usage[label].holders[:] = self.usage[label].slots[: layer.count] = range(layer.count)

    def targets(self, devices: Sequence[Device], types: Mapping[str, Type]) -> Targets:
        found = self.inner.targets(devices, types)
        for target in found.values():
            target.packed = {**target.packed, **self.layout.packed(target.device, target.packed)}
        return found

    def context(self, context: Context, tokens: int) -> Context:
        return replace(self.inner.context(context, tokens), expert_parts=self.layout.parts)

    def add_places(self, device: str, packed: Mapping[str, PackedWeight], places: Places) -> None:
        self.inner.add_places(device, packed, places)
        self.layout.add_places(self.gguf, device, packed, places)

    def load(self, devices: Sequence[Device], packed: PackedOn) -> WeightsOn:
        found = self.inner.load(devices, packed)
        for device in devices:
            self._put(device, found[device.name], packed[device.name])
        return found

    def _put(self, device: Device, weights: DeviceWeights, packed: Mapping[str, PackedWeight]) -> None:
        """Sends a device its initial experts."""
        places = Places()
        size = self.layout.add_places(self.gguf, device.name, packed, places)
        if not size:
            return
        self._buffers[device.name] = weights.buffers[BUFFER] = device.alloc(size, WEIGHT)
        self._places[device.name] = places.places
        self._packed |= {name: packed[name] for name in places.places if name in packed}
        for name, place in places.places.items():
            weights.add(name, *place)
        for label, layer in self.layout.layers.items():
            if layer.device == device.name:
                for slot, expert in enumerate(self.usage[label].holders):
                    self._fill(label, slot, int(expert))
            self._tell(label, device.name)

    def value(self, name: str) -> Array | None:
        label = ".".join(name.split(".")[:2])
        layer, usage = self.layout.layers.get(label), self.usage.get(label)
        if layer is None or usage is None:
            return self.inner.value(name)
        if (table := self._tables(label).get(name)) is not None:
            return table
        base = name.removesuffix(CACHED)
        if base == name or base not in layer.tensors:
            return self.inner.value(name)
        found: Array = self.gguf.array(base)[usage.holders]
        return found

    def _tables(self, label: str) -> dict[str, Array]:
        """A layer's slot tables, by name."""
        part, slots = self.layout.layers[label].part, self.usage[label].slots
        own = np.arange(len(slots), dtype=np.int32)
        rest = np.where(slots < 0, own, np.int32(-1))
        return {part_table(label, part): slots, rest_table(label, part): rest}

    def _tell(self, label: str, device: str) -> None:
        """Writes a layer's slot tables to a device."""
        for name, table in self._tables(label).items():
            place = self._places[device].get(name)
            if place is not None:
                self._buffers[device].write(place.offset, np.ascontiguousarray(table))

    def _tell_all(self, label: str) -> None:
        for device in {self.layout.host, self.layout.layers[label].device}:
            self._tell(label, device)

    def _fill(self, label: str, slot: int, expert: int) -> None:
        layer = self.layout.layers[label]
        for name in layer.tensors:
            place, packed = self._places[layer.device][name + CACHED], self._packed.get(name + CACHED)
            one = range(expert, expert + 1)
            write_experts(self._buffers[layer.device], place, slot, self.gguf, name, one, packed)

    def steps(self, tokens: int, loaded: WeightsOn) -> StepWeights:
        return replace(self.inner.steps(tokens, loaded), picked=self.picked)

    def picked(self, label: str, ids: Array) -> None:
        """Counts the experts (T, k) that a step's tokens selected in a layer."""
        if label in self.usage:
            self.usage[label].add(ids)

    def between_steps(self, idle: Callable[[], bool]) -> None:
        """Puts received experts to use, and starts sending those that are worth it."""
        self.inner.between_steps(idle)
        if not idle():
            return
        if self._coming is not None:
            future, swaps = self._coming
            if not future.done():
                return
            self._coming = None
            if not self._arrived(future, swaps):
                return
        swaps = self._wanted()
        for label, swap in swaps:
            usage = self.usage[label]
            usage.holders[swap.slot] = swap.expert
            if swap.before >= 0:
                usage.slots[swap.before] = -1
        for label in dict.fromkeys(label for label, _ in swaps):
            self._tell_all(label)
        if swaps:
            self._coming = self._pool.submit(self._send, swaps), swaps

    def _arrived(self, future: Future[None], swaps: list[tuple[str, Replacement]]) -> bool:
        """Puts received experts to use. False if the transfer failed: the cache then stays as it is."""
        error = future.exception()
        if isinstance(error, DeviceLost):
            raise error
        if error is not None:
            LOG.warning("the expert cache stays as it is: %s", error)
            self.step_bytes = 0
            for label, swap in swaps:
                self.usage[label].holders[swap.slot] = -1
            return False
        for label, swap in swaps:
            self.usage[label].slots[swap.expert] = swap.slot
            self.moved += self.bytes_of(label)
        for label in dict.fromkeys(label for label, _ in swaps):
            self._tell_all(label)
        return True

    def _wanted(self) -> list[tuple[str, Replacement]]:
        """At most one replacement per layer, largest gain first, within STEP_BYTES."""
        found = [(label, swap) for label, usage in self.usage.items() if (swap := usage.swap()) is not None]
        found.sort(key=lambda pair: -pair[1].gain)
        chosen: list[tuple[str, Replacement]] = []
        left = self.step_bytes
        for label, swap in found:
            if left <= 0 or (chosen and self.bytes_of(label) > left):
                break
            left -= self.bytes_of(label)
            chosen.append((label, swap))
        return chosen

    def _send(self, swaps: list[tuple[str, Replacement]]) -> None:
        for label, swap in swaps:
            try:
                self._fill(label, swap.slot, swap.expert)
            except DeviceError:
                raise
            except (OSError, ValueError) as error:
                raise DeviceError(f"{label}: expert {swap.expert} could not be read: {error}") from error

    def bytes_of(self, label: str) -> int:
        """Bytes of one expert of a layer."""
        layer = self.layout.layers[label]
        return sum(self.gguf.tensors[name].nbytes // layer.experts for name in layer.tensors)

    @property
    def counted(self) -> tuple[int, int]:
        """(expert selections so far, those that a GPU computed)."""
        return sum(p.lookups for p in self.usage.values()), sum(p.hits for p in self.usage.values())

    def counters(self) -> dict[str, Any]:
        lookups, hits = self.counted
        return {
            **self.inner.counters(),
            "expert_cache_lookups": lookups,
            "expert_cache_hits": hits,
            "expert_cache_moved_bytes": self.moved,
        }

    def wait(self) -> None:
        """Waits until the transfer under way is complete."""
        if self._coming is not None:
            self._coming[0].exception()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for buffer in self._buffers.values():
            buffer.close()
        self._buffers.clear()
        self.inner.close()
