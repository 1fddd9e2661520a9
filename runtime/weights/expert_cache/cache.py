"""The expert cache while a model runs: which experts a GPU holds, and how that changes.

A place is emptied between two steps, filled by a thread while steps run that do not read it, and used from
the step after that on. So no plan ever reads what is being written, and each expert is done by one device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from satchel.errors import DeviceError
from satchel.formats.gguf import GGUF
from satchel.runtime.compiler.expert_cache import CACHED, UNCACHED, table_name
from satchel.runtime.device.device import WEIGHT, Buffer, Device
from satchel.runtime.device.lost import DeviceLost
from satchel.runtime.graph import Array
from satchel.runtime.log import LOG
from satchel.runtime.plan import WeightPlace
from satchel.runtime.weights.expert_cache.layout import BUFFER, ExpertCacheLayout
from satchel.runtime.weights.expert_cache.usage import ExpertUsage, Replacement
from satchel.runtime.weights.packing import PackedWeight, Places
from satchel.runtime.weights.weights import DeviceWeights, aligned

STEP_BYTES = 32 << 20  # that are sent at most at a time; one expert always


@dataclass(frozen=True, slots=True)
class PendingExpertCache:
    """The expert cache of a file, before there is memory for it. first: of each layer the experts to begin
    with, the best first.
    """

    gguf: GGUF
    layout: ExpertCacheLayout
    first: Mapping[str, Sequence[int]] = field(default_factory=dict)


class ExpertCache:
    """put() each device, then picked() and between() as steps go by, all from one thread."""

    def __init__(self, pending: PendingExpertCache, step_bytes: int = STEP_BYTES) -> None:
        self.pending, self.layout, self.step_bytes = pending, pending.layout, step_bytes
        self.usage = {label: ExpertUsage(x.experts, x.count) for label, x in self.layout.layers.items()}
        self.moved = 0  # bytes since the first ones were there
        self._buffers: dict[str, Buffer] = {}
        self._places: dict[str, dict[str, WeightPlace]] = {}
        self._packed: dict[str, PackedWeight] = {}
        self._coming: tuple[Future[None], list[tuple[str, Replacement]]] | None = None
        self._pool = ThreadPoolExecutor(1, "satchel-expert-cache")
        for label, layer in self.layout.layers.items():
            wanted = [e for e in pending.first.get(label, ()) if 0 <= e < layer.experts]
            held = list(dict.fromkeys([*wanted, *range(layer.experts)]))[: layer.count]
            self.usage[label].holders[:] = held
            self.usage[label].slots[held] = range(layer.count)

    def put(self, device: Device, weights: DeviceWeights, packed: Mapping[str, PackedWeight]) -> None:
        """Brings a device its part."""
        places = Places()
        size = self.layout.add_places(self.pending.gguf, device.name, packed, places)
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

    def raw(self, name: str) -> Array | None:
        """The values of a tensor that is no file's as they are now, in the file's format; None: it is one."""
        label = ".".join(name.split(".")[:2])
        layer, usage = self.layout.layers.get(label), self.usage.get(label)
        if layer is None or usage is None:
            return None
        if name in (table_name(label, CACHED), table_name(label, UNCACHED)):
            return self._table(label, UNCACHED if name.endswith(UNCACHED) else CACHED)
        base = name.removesuffix(CACHED)
        if base == name or base not in layer.tensors:
            return None
        found: Array = self.pending.gguf.array(base)[usage.holders]
        return found

    def _table(self, label: str, kind: str) -> Array:
        slots = self.usage[label].slots
        own = np.arange(len(slots), dtype=np.int32)
        return slots if kind == CACHED else np.where(slots < 0, own, np.int32(-1))

    def _tell(self, label: str, device: str) -> None:
        """Writes a layer's tables on a device."""
        for kind in (CACHED, UNCACHED):
            place = self._places[device].get(table_name(label, kind))
            if place is not None:
                self._buffers[device].write(place.offset, np.ascontiguousarray(self._table(label, kind)))

    def _tell_all(self, label: str) -> None:
        for device in {self.layout.host, self.layout.layers[label].device}:
            self._tell(label, device)

    def _fill(self, label: str, slot: int, expert: int) -> None:
        layer, gguf = self.layout.layers[label], self.pending.gguf
        for name in layer.tensors:
            place, packed = self._places[layer.device][name + CACHED], self._packed.get(name + CACHED)
            each = gguf.tensors[name].nbytes // layer.experts
            raw = gguf.raw(name).reshape(-1).view(np.uint8)[each * expert : each * (expert + 1)]
            buffer, data = self._buffers[layer.device], aligned(raw)
            if packed is None:
                buffer.write(place.offset + each * slot, data)
            else:
                at = place.offset + packed.size // packed.stack * slot
                buffer.pack(at, packed.format, (1, packed.rows, packed.columns), data)

    def picked(self, label: str, ids: Array) -> None:
        """A step's tokens picked these experts (T, k) of a layer."""
        if label in self.usage:
            self.usage[label].add(ids)

    def between(self) -> None:
        """No step is under way: what has come is used from now on, and what is worth it is sent next."""
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
        """Puts what was sent to use; False where it could not be sent: what is held stays then."""
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
        """At most one change a layer, those that gain most first, as far as a step's bytes go."""
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
        """Of one expert of a layer."""
        layer = self.layout.layers[label]
        return sum(self.pending.gguf.tensors[name].nbytes // layer.experts for name in layer.tensors)

    @property
    def counted(self) -> tuple[int, int]:
        """Picks so far, and how many of them a GPU computed."""
        return sum(p.lookups for p in self.usage.values()), sum(p.hits for p in self.usage.values())

    def wait(self) -> None:
        """Until what is being sent is there."""
        if self._coming is not None:
            self._coming[0].exception()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for buffer in self._buffers.values():
            buffer.close()
        self._buffers.clear()
