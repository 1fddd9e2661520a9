"""Weight prefetch: for steps of many tokens, a GPU computes with weights that are on the CPU: of the CPU's
own layers, and of experts of the GPU's own layers. A layer's weights are sent while the layer before it runs,
into one of two buffers.

A layer's segment runs after its weights have arrived, and weights are sent to a buffer after the segment that
read it: the device waits for both (HAL_PREFETCH of hal.h), so the host goes ahead. Where there is memory for
it the file's pages are locked, and the device copies from them at the speed of its link: the next layer's
copies are queued before a layer begins, because the host may then wait for that layer's values. Otherwise a
thread copies the weights into staging memory first.

The keys and values of a CPU's layer travel with its weights where a buffer has room for them: the blocks of
the tokens before the step are sent, and those that the step wrote are read back before the next layer begins.
So attention runs on the GPU too. Other states of a layer, and its attention with them, stay with the CPU.

Where the device has no room for the buffers, its own layers that follow the prefetched ones lie in them: a
long step sends them last, so after it they are there again, and short steps read them there.

Invariant: between two steps the CPU's own state buffer has all keys and values of its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import inf
from mmap import PAGESIZE
from typing import NamedTuple

import numpy as np

from satchel.errors import DeviceError
from satchel.formats.gguf import GGUF
from satchel.runtime.compiler.context import Context
from satchel.runtime.device.device import PREFETCH, Buffer, Device, PinnedMemory
from satchel.runtime.graph import Array, Type
from satchel.runtime.log import LOG
from satchel.runtime.placement.placement import Placement
from satchel.runtime.plan import WeightPlace, align_up
from satchel.runtime.weights.packing import PackedWeight, Places
from satchel.runtime.weights.residency import (
    Over,
    PackedOn,
    Pager,
    Residency,
    StateBlocks,
    StepWeights,
    Targets,
    WeightsOn,
)
from satchel.runtime.weights.weights import DeviceWeights, aligned, write_weight

SLOTS = 2  # buffers: one being read, one being filled


@dataclass(frozen=True, slots=True)
class PrefetchPlan:
    """Which weights `device` prefetches."""

    device: str
    layers: Mapping[str, tuple[str, ...]]  # names of the tensors of each layer, in order
    min_tokens: int  # smallest step that uses the prefetch
    placement: Placement  # of such a step
    nbytes: int  # of the buffers on the device, beside the residents
    sent: int  # bytes of the weights of all layers
    # By layer, the keys and values that travel with its weights: bytes of each, by the state's name.
    states: Mapping[str, Mapping[str, int]]
    pinned: bool = False  # the file's pages are locked in memory
    # The last of the layers, which are the device's own: between long steps they lie in the buffers, where
    # short steps read them.
    residents: tuple[str, ...] = ()

    @property
    def travelling(self) -> Mapping[str, int]:
        """Bytes of each state that travels, by name."""
        return {name: size for own in self.states.values() for name, size in own.items()}

    @property
    def gain(self) -> float:
        """Predicted speedup from which on it is used. Without locked pages a thread copies all bytes, at a
        speed that depends on what else the host does.
        """
        return 1.25 if self.pinned else 2.0


class BlockRange(NamedTuple):
    """Consecutive blocks of a cache."""

    first: int
    length: int


class StepBlocks(NamedTuple):
    """Blocks of a step's sequences, by the name of the block table: those of the tokens before the step, and
    those that the step writes.
    """

    before: Mapping[str, Sequence[BlockRange]]
    written: Mapping[str, Sequence[BlockRange]]


class ResidentLayers(Pager):
    """Short steps' hold on the layers that lie in the buffers."""

    def __init__(self, restore: Callable[[], None]) -> None:
        self._restore = restore

    def begin(self, fields: Mapping[str, Array], tokens: int) -> None:
        self._restore()


class WeightPrefetcher(Over, Pager):
    """Weights on the CPU that another device computes with in long steps: the buffers there, and the thread
    that fills them.
    """

    def __init__(self, inner: Residency, gguf: GGUF, plan: PrefetchPlan) -> None:
        super().__init__(inner)
        self.gguf, self.plan, self.min_tokens = gguf, plan, float(plan.min_tokens)
        self.packed: dict[str, PackedWeight] = {}  # weights of the layers that the device packs
        self._order = list(plan.layers)
        self._weights, self._residents = DeviceWeights(), DeviceWeights()
        self._filled: dict[int, str] = {}  # by slot, the layer that it holds or is being filled with
        self._coming: dict[str, Future[None]] = {}
        self._homes: dict[str, StateBlocks] = {}  # where the states that travel lie between steps
        self._block = 0  # positions of a block
        self._blocks = StepBlocks({}, {})  # of the step under way
        self._brought: set[str] = set()  # layers whose states this step has sent
        self._entered = ""  # the layer that runs
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
        moved = dict.fromkeys(self.plan.travelling, self.plan.device)
        return replace(
            found,
            wanted=self.plan.placement,
            streamed=(self.plan.device,),
            expert_cache=cached,
            homes={**found.homes, **moved},
        )

    def nbytes(self, device: str) -> int:
        return self.inner.nbytes(device) + self.plan.nbytes * (device == self.plan.device)

    def add_places(self, device: str, packed: Mapping[str, PackedWeight], places: Places) -> None:
        self.inner.add_places(device, packed, places)
        for label, states in self.plan.states.items() if device == self.plan.device else ():
            laid_out = self._lay_out(label)
            for name, size in states.items():
                place = places.places[name] = laid_out[name]
                end = place.offset + size
                places.buffers[place.buffer] = max(places.buffers.get(place.buffer, 0), end)

    def load(self, devices: Sequence[Device], packed: PackedOn) -> WeightsOn:
        mine = frozenset(name for label in self.plan.residents for name in self.plan.layers[label])
        others = {self.plan.device: packed[self.plan.device].without(mine)} if mine else {}
        found = self.inner.load(devices, {**packed, **others})
        device = next((d for d in devices if d.name == self.plan.device), None)
        if device is None:
            self.min_tokens = inf  # the device has no part of the model
            return found
        places = {name: at for label in self._order for name, at in self._lay_out(label).items()}
        travelling, sizes = self.plan.travelling, dict[str, int]()
        for name, place in places.items():
            size = travelling[name] if name in travelling else self._size(name)
            sizes[place.buffer] = max(sizes.get(place.buffer, 0), place.offset + size)
        self._weights = DeviceWeights(Places(places))
        self._weights.buffers = {name: device.alloc(size, PREFETCH) for name, size in sizes.items()}
        self._residents = DeviceWeights(Places({name: places[name] for name in mine}))
        self._residents.buffers = self._weights.buffers
        if self.plan.pinned:
            self._pin(device)
        self._restore()
        return found

    def _restore(self) -> None:
        """Sends those of the residents that are not where short steps read them: at first, and after a step
        that failed.
        """
        try:
            for label in self.plan.residents:
                self._bring(self._order.index(label), ahead=True)
        except BaseException:
            self._filled.clear()  # the buffers' contents are unknown
            raise

    def attach(self, states: Mapping[str, StateBlocks], block: int) -> None:
        self.inner.attach(states, block)
        self._homes, self._block = {name: states[name] for name in self.plan.travelling}, block
        for buffer in dict.fromkeys(home.buffer for home in self._homes.values()) if self._pinned else ():
            copied = f"keys and values are copied on the way to {self.plan.device}"
            if locked := self._pinned[0].device.pin_buffer(buffer, copied):
                self._pinned.append(locked)

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
        short = tokens < self.min_tokens
        if short and not (self.buffers and self.plan.residents):
            return found
        there = found.devices[name].overlaid(self._residents if short else self._weights)
        pager = ResidentLayers(self._restore) if short else self
        return replace(found, devices={**found.devices, name: there}, pagers={**found.pagers, name: pager})

    def _size(self, name: str) -> int:
        return self.packed[name].size if name in self.packed else self.gguf.tensors[name].nbytes

    def _lay_out(self, label: str) -> dict[str, WeightPlace]:
        """Places of a layer's weights, and of the states that travel with them, in the buffer of its slot."""
        buffer, at = f"prefetch.{self._order.index(label) % SLOTS}", 0
        found: dict[str, WeightPlace] = {}
        for name in self.plan.layers[label]:
            packed = self.packed[name].size if name in self.packed else 0
            found[name] = WeightPlace(buffer, at, packed)
            at = align_up(at + self._size(name))
        for name, size in self.plan.states.get(label, {}).items():
            found[name] = WeightPlace(buffer, at)
            at = align_up(at + size)
        return found

    def begin(self, fields: Mapping[str, Array], tokens: int) -> None:
        self._brought.clear()
        self._entered = ""  # that of a step that failed
        if self._homes:
            tables = {home.table: fields[home.table] for home in self._homes.values()}
            slots, positions = fields["slot"][:tokens], fields["pos"][:tokens]
            self._blocks = step_blocks(tables, slots, positions, self._block)

    def enter(self, label: str) -> None:
        """Sends the layer's weights, and the next layer's after them."""
        try:
            if label != self._entered:
                self._leave()
            if label not in self.plan.layers:
                return
            self._entered, at = label, self._order.index(label)
            self._bring(at)
            if at + 1 < len(self._order):
                self._send(at + 1)
        except BaseException:
            self._filled.clear()  # the buffers' contents are unknown
            raise

    def end(self) -> None:
        self._leave()

    def _leave(self) -> None:
        """Called behind a layer: reads back what it wrote, and behind the last one begins with the first ones
        of the next step, while the device computes with weights of its own. Not where other layers lie in the
        buffers, and only with locked pages: else a thread would copy for a step that may never come.
        """
        label, self._entered = self._entered, ""
        self._read_back(label)
        if label == self._order[-1] and self._pinned and not self.plan.residents:
            for at in range(min(SLOTS, len(self._order))):
                self._send(at, ahead=True)

    def _read_back(self, label: str) -> None:
        """Waits for a layer and brings home the keys and values that it wrote."""
        for name in self.plan.states.get(label, ()):
            home, place = self._homes[name], self._weights.place(name)
            for first, length in self._blocks.written[home.table]:
                at, size = first * home.size, length * home.size
                memory = home.buffer.memory
                out = np.empty(size, np.uint8) if memory is None else memory[home.start + at :][:size]
                self.buffers[place.buffer].read_into(place.offset + at, out)
                if memory is None:
                    home.buffer.write(home.start + at, out)

    def _bring(self, at: int, ahead: bool = False) -> None:
        """Sends what of a layer is not there yet, and waits for the thread that does."""
        self._send(at, ahead)
        if self._order[at] in self._coming:
            self._coming[self._order[at]].result()

    def _send(self, at: int, ahead: bool = False) -> None:
        """Sends what of a layer is not there yet. ahead: the step that needs it is not known."""
        slot, label = at % SLOTS, self._order[at]
        weights = self._filled.get(slot) != label
        states = not ahead and label in self.plan.states and label not in self._brought
        if not weights and not states:
            return
        self._filled[slot] = label
        if states:
            self._brought.add(label)
        if self._pinned:
            self._fill(label, weights, states)  # it only queues copies
        else:
            self._coming[label] = self._pool.submit(self._fill, label, weights, states)

    def _fill(self, label: str, weights: bool, states: bool) -> None:
        """Sends a layer's weights, or the blocks of its states that the step reads, or both."""
        for name in self.plan.layers[label] if weights else ():
            place, raw = self._weights.place(name), aligned(self.gguf.raw(name).reshape(-1))
            write_weight(self.buffers[place.buffer], place.offset, raw, self.packed.get(name))
        for name in self.plan.states[label] if states else ():
            home, place = self._homes[name], self._weights.place(name)
            for first, length in self._blocks.before[home.table]:
                at, size = first * home.size, length * home.size
                self.buffers[place.buffer].write(place.offset + at, home.buffer.view(home.start + at, size))

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for buffer in self.buffers.values():
            buffer.close()
        self._unpin()
        self._weights = DeviceWeights()
        self.inner.close()


def step_blocks(tables: Mapping[str, Array], slots: Array, positions: Array, block: int) -> StepBlocks:
    """The blocks of a step with tokens of these slots at these positions. tables: block tables (slots,
    blocks of a slot) by name. block: positions of a block.
    """
    before: dict[str, list[int]] = {name: [] for name in tables}
    written: dict[str, list[int]] = {name: [] for name in tables}
    for slot in np.unique(slots):
        mine = positions[slots == slot]
        first, last = int(mine.min()), int(mine.max())
        for name, table in tables.items():
            before[name] += table[slot, : -(-first // block)].tolist()
            written[name] += table[slot, first // block : last // block + 1].tolist()
    return StepBlocks(
        {name: block_ranges(found) for name, found in before.items()},
        {name: block_ranges(found) for name, found in written.items()},
    )


def block_ranges(blocks: Sequence[int]) -> list[BlockRange]:
    """The same blocks as ranges, each once; without entries whose blocks were freed."""
    found: list[BlockRange] = []
    for block in sorted({b for b in blocks if b >= 0}):
        if found and block == found[-1].first + found[-1].length:
            found[-1] = BlockRange(found[-1].first, found[-1].length + 1)
        else:
            found.append(BlockRange(block, 1))
    return found
