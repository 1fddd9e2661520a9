"""Weight prefetch: for steps of many tokens, a GPU computes with weights that are on the CPU: of the CPU's
own layers, and of experts of the GPU's own layers. A layer's weights are sent while the layer before it runs,
into one of two slots: a buffer of experts, which come last, and one of all else.

A segment runs after the weights that it reads have arrived, and weights are sent to a buffer after the
segments that read it: the device waits for both (HAL_PREFETCH of hal.h), so the host goes ahead. Where there
is memory for it the file's pages are locked, and the device copies from them at the speed of its link: the
next layer's copies are queued when a layer has begun, before the host waits for that layer's values.
Otherwise a thread copies the weights into staging memory first.

The keys and values of a CPU's layer travel with its weights where a buffer has room for them: the blocks of
the tokens before the step are sent, and those that the step wrote are read back before the next layer begins.
So attention runs on the GPU too. Other states of a layer, and its attention with them, stay with the CPU.

Of a mixture's layer the CPU may keep some experts: it computes them while the others are sent, so less is
sent. The longer a step, the fewer it keeps (`HostShare`).

Where the device has no room for the buffers, its own layers that follow the prefetched ones lie in them: a
long step sends them last, so after it they are there again, and short steps read them there.

Invariant: between two steps the CPU's own state buffer has all keys and values of its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from mmap import PAGESIZE
from typing import NamedTuple

import numpy as np

from satchel.errors import DeviceError
from satchel.formats.gguf import GGUF
from satchel.runtime.compiler.context import Context, ExpertPart
from satchel.runtime.compiler.split_experts import part_table, rest_table
from satchel.runtime.device.device import PREFETCH, WEIGHT, Buffer, Device, PinnedMemory
from satchel.runtime.graph import Array, Type
from satchel.runtime.log import LOG
from satchel.runtime.placement.placement import Placement
from satchel.runtime.plan import WeightPlace, align_up
from satchel.runtime.weights.packing import PackedWeight, Places, first_of
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
from satchel.runtime.weights.weights import DeviceWeights, aligned, write_experts, write_weight

SLOTS = 2  # buffers: one being read, one being filled
TABLES = "prefetch.tables"  # buffer of the slot tables of experts
ALL = 1 << 30  # more experts than a layer has


class HostShare(NamedTuple):
    """From steps of so many tokens on, the CPU computes this share of the experts of each layer."""

    tokens: int
    share: float


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
    experts: frozenset[str] = frozenset()  # those of the tensors that are stacks of experts
    host_shares: tuple[HostShare, ...] = ()  # by tokens, the first from min_tokens on; (): none

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


class LongSteps(Pager):
    """Steps with prefetched weights. parts: the experts that are sent, of layers whose CPU keeps some."""

    def __init__(self, prefetcher: WeightPrefetcher, parts: Mapping[str, ExpertPart]) -> None:
        self._prefetcher, self._parts = prefetcher, parts

    def begin(self, fields: Mapping[str, Array], tokens: int) -> None:
        self._prefetcher.begin(fields, tokens, self._parts)

    def enter(self, label: str) -> None:
        self._prefetcher.enter(label)

    def entered(self) -> None:
        self._prefetcher.send_next()

    def end(self) -> None:
        self._prefetcher.leave()


class WeightPrefetcher(Over):
    """Weights on the CPU that another device computes with in long steps: the buffers there, and the thread
    that fills them.
    """

    def __init__(self, inner: Residency, gguf: GGUF, plan: PrefetchPlan) -> None:
        super().__init__(inner)
        self.gguf, self.plan, self.min_tokens = gguf, plan, float(plan.min_tokens)
        self.packed: dict[str, PackedWeight] = {}  # weights of the layers that the device packs
        self._order = list(plan.layers)
        self._weights, self._residents = DeviceWeights(), DeviceWeights()
        self._tables = DeviceWeights()  # of the CPU
        # By the smallest step of each kind, the experts that are sent of layers whose CPU keeps some.
        self._parts: dict[float, dict[str, ExpertPart]] = {}
        self._step: Mapping[str, ExpertPart] = {}  # those of the step under way
        # By slot, the layer that it holds or is being filled with, and how many of its experts.
        self._filled: dict[int, tuple[str, int]] = {}
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
        target = found[self.plan.device]
        self.packed = {n: p for n, p in target.packed.items() if n in names}
        for tokens, share in self.plan.host_shares:
            parts = {label: self._part_of(label, share, target.device) for label in self._order}
            self._parts[tokens] = {label: part for label, part in parts.items() if part is not None}
        target.packed = {**target.packed, **self.packed}
        return found

    def _part_of(self, label: str, share: float, device: Device) -> ExpertPart | None:
        """The experts of a layer that are sent if the CPU has this share; None: all are, or the device cannot
        have a part. Notes how it packs them.
        """
        number, stacks = self._experts(label), self._stacks(label)
        count = max(1, number - round(share * number))
        if label in self.plan.residents or count >= number:
            return None
        part = ExpertPart(count, f".sent{count}")
        packed = {name: first_of(device, self.packed[name], count) for name in stacks if name in self.packed}
        cut = {name + part.suffix: first for name, first in packed.items() if first is not None}
        if len(cut) < len(packed):
            return None
        self.packed |= cut
        return part

    def _experts(self, label: str) -> int:
        """How many experts a layer has; 0 where none are sent."""
        return min((self.gguf.tensors[name].shape[0] for name in self._stacks(label)), default=0)

    def _stacks(self, label: str) -> list[str]:
        """Those of a layer's weights that are stacks of experts."""
        return [name for name in self.plan.layers[label] if name in self.plan.experts]

    def _cut(self) -> Iterator[tuple[str, str, ExpertPart]]:
        """Layers, stacks of experts of theirs, and the parts of these that are sent for some step."""
        for parts in self._parts.values():
            for label, part in parts.items():
                for name in self._stacks(label):
                    yield label, name, part

    def _parts_for(self, tokens: int) -> Mapping[str, ExpertPart]:
        return self._parts.get(self.variant(tokens), {})

    def variant(self, tokens: int) -> int:
        if tokens < self.min_tokens:
            return self.inner.variant(tokens)
        begun = (least for least, _ in self.plan.host_shares if least <= tokens)
        return max(begun, default=self.plan.min_tokens)

    def context(self, context: Context, tokens: int) -> Context:
        found = self.inner.context(context, tokens)
        if tokens < self.min_tokens:
            return found
        parts = self._parts_for(tokens)
        others = {label: part for label, part in found.expert_parts.items() if label not in self.plan.layers}
        moved = dict.fromkeys(self.plan.travelling, self.plan.device)
        return replace(
            found,
            wanted=self._placement(tokens),
            streamed=(self.plan.device,),
            expert_parts={**others, **parts},
            homes={**found.homes, **moved},
        )

    def _placement(self, tokens: int) -> Placement:
        placement = self.plan.placement
        return replace(placement, weights={**placement.weights, **self.homes_of_experts(tokens)})

    def homes_of_experts(self, tokens: int) -> dict[str, str]:
        """Device of each weight of experts of which a part is sent for a step of so many tokens."""
        here, there = self.plan.placement.first, self.plan.device
        found: dict[str, str] = {}
        for label, part in self._parts_for(tokens).items():
            found |= {part_table(label, part): there, rest_table(label, part): here}
            for name in self._stacks(label):
                found |= {name: here, name + part.suffix: there}
        return found

    def nbytes(self, device: str) -> int:
        tables = sum(self._table_places().sizes().values()) if self._reads_tables(device) else 0
        return self.inner.nbytes(device) + self.plan.nbytes * (device == self.plan.device) + tables

    def _reads_tables(self, device: str) -> bool:
        return device in (self.plan.device, self.plan.placement.first)

    def _table_values(self) -> dict[str, Array]:
        """The slot tables of all steps, by name."""
        found: dict[str, Array] = {}
        for label, part in (both for parts in self._parts.values() for both in parts.items()):
            own = np.arange(self._experts(label), dtype=np.int32)
            found[part_table(label, part)] = np.where(own < part.count, own, np.int32(-1))
            found[rest_table(label, part)] = np.where(own < part.count, np.int32(-1), own)
        return found

    def _table_places(self) -> Places:
        found, at = Places(), 0
        for name, table in self._table_values().items():
            found.place_at(name, TABLES, at)
            at = align_up(at + table.nbytes)
        if at:
            found.buffers[TABLES] = at
        return found

    def add_places(self, device: str, packed: Mapping[str, PackedWeight], places: Places) -> None:
        self.inner.add_places(device, packed, places)
        if self._reads_tables(device):
            tables = self._table_places()
            places.places.update(tables.places)
            places.buffers.update(tables.buffers)
        if device != self.plan.device:
            return
        places.places.update(self._cut_places())
        for label, name, _ in self._cut():
            self._grow(places.buffers, self._lay_out(label)[name], self._size(name))
        for label, states in self.plan.states.items():
            laid_out = self._lay_out(label)
            for name, size in states.items():
                places.places[name] = laid_out[name]
                self._grow(places.buffers, laid_out[name], size)

    @staticmethod
    def _grow(buffers: dict[str, int], place: WeightPlace, size: int) -> None:
        """Makes a buffer large enough for what lies there."""
        buffers[place.buffer] = max(buffers.get(place.buffer, 0), place.offset + size)

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
            self._grow(sizes, place, size)
        tables = self._table_places()
        self._weights = DeviceWeights(Places(places | self._cut_places() | tables.places))
        self._weights.buffers = {name: device.alloc(size, PREFETCH) for name, size in sizes.items()}
        self._residents = DeviceWeights(Places({name: places[name] for name in mine}))
        self._residents.buffers = self._weights.buffers
        if tables.places:
            self._tables = DeviceWeights(tables)
            host = next(d for d in devices if d.name == self.plan.placement.first)
            for weights, reader in ((self._weights, device), (self._tables, host)):
                self._write_tables(weights, reader, tables.buffers[TABLES])
        if self.plan.pinned:
            self._pin(device)
        self._restore()
        return found

    def _write_tables(self, weights: DeviceWeights, device: Device, size: int) -> None:
        """Gives a device the slot tables, in a buffer of so many bytes."""
        buffer = weights.buffers[TABLES] = device.alloc(size, WEIGHT)
        for name, table in self._table_values().items():
            buffer.write(weights.place(name).offset, table)

    def _cut_places(self) -> dict[str, WeightPlace]:
        """Places of the experts that are sent where not all are: where all would lie."""
        found: dict[str, WeightPlace] = {}
        for label, name, part in self._cut():
            whole = self._lay_out(label)[name]
            cut = self.packed.get(name + part.suffix)
            found[name + part.suffix] = whole._replace(packed=cut.size if cut else 0)
        return found

    def _restore(self) -> None:
        """Sends those of the residents that are not where short steps read them: at first, and after a step
        that failed.
        """
        with self._sure():
            for label in self.plan.residents:
                self._bring(self._order.index(label), ahead=True)

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
        pager = ResidentLayers(self._restore) if short else LongSteps(self, self._parts_for(tokens))
        on = {**found.devices, name: there}
        if not short and self._tables.buffers:
            here = self.plan.placement.first
            on[here] = found.devices[here].overlaid(self._tables)
        return replace(found, devices=on, pagers={**found.pagers, name: pager})

    def _size(self, name: str) -> int:
        return self.packed[name].size if name in self.packed else self.gguf.tensors[name].nbytes

    def _lay_out(self, label: str) -> dict[str, WeightPlace]:
        """Places of a layer's weights, and of the states that travel with them, in its slot's buffers."""
        slot, ends = f"prefetch.{self._order.index(label) % SLOTS}", dict[str, int]()
        found: dict[str, WeightPlace] = {}
        sizes = {name: self._size(name) for name in self.plan.layers[label]}
        for name, size in {**sizes, **self.plan.states.get(label, {})}.items():
            buffer = f"{slot}.experts" if name in self.plan.experts else slot
            packed = self.packed[name].size if name in self.packed else 0
            found[name] = WeightPlace(buffer, ends.get(buffer, 0), packed)
            ends[buffer] = align_up(ends.get(buffer, 0) + size)
        return found

    def begin(self, fields: Mapping[str, Array], tokens: int, parts: Mapping[str, ExpertPart]) -> None:
        """Begins a step of so many tokens, for which these parts of experts are sent."""
        self._step = parts
        self._brought.clear()
        self._entered = ""  # that of a step that failed
        if self._homes:
            tables = {home.table: fields[home.table] for home in self._homes.values()}
            slots, positions = fields["slot"][:tokens], fields["pos"][:tokens]
            self._blocks = step_blocks(tables, slots, positions, self._block)

    def enter(self, label: str) -> None:
        """Sends what of the layer's weights is not there yet."""
        with self._sure():
            if label != self._entered:
                self.leave()
            if label in self.plan.layers:
                self._entered = label
                self._bring(self._order.index(label))

    def send_next(self) -> None:
        """Sends the weights of the layer after the one that has begun."""
        with self._sure():
            at = self._order.index(self._entered) + 1 if self._entered else len(self._order)
            if at < len(self._order):
                self._send(at)

    @contextmanager
    def _sure(self) -> Iterator[None]:
        """Forgets what the buffers hold if an error leaves the body: their contents are unknown."""
        try:
            yield
        except BaseException:
            self._filled.clear()
            raise

    def leave(self) -> None:
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
        held, count = self._filled.get(slot, ("", 0))
        first = count if held == label else -1
        end = self._step[label].count if label in self._step else ALL
        states = not ahead and label in self.plan.states and label not in self._brought
        if first >= end and not states:
            return
        self._filled[slot] = label, max(first, end)
        if states:
            self._brought.add(label)
        if self._pinned:
            self._fill(label, first, end, states)  # it only queues copies
        else:
            self._coming[label] = self._pool.submit(self._fill, label, first, end, states)

    def _fill(self, label: str, first: int, end: int, states: bool) -> None:
        """Sends a layer's weights, or the blocks of its states that the step reads, or both: its experts from
        number `first` on and before `end`, at last, for what runs before them need not wait for them; all
        other weights if `first` is -1.
        """
        stacks = self._stacks(label)
        for name in self.plan.layers[label] if first < 0 else ():
            if name not in stacks:
                place, raw = self._weights.place(name), self.gguf.raw(name).reshape(-1)
                write_weight(self.buffers[place.buffer], place.offset, aligned(raw), self.packed.get(name))
        for name in self.plan.states[label] if states else ():
            home, place = self._homes[name], self._weights.place(name)
            for block, length in self._blocks.before[home.table]:
                at, size = block * home.size, length * home.size
                self.buffers[place.buffer].write(place.offset + at, home.buffer.view(home.start + at, size))
        for name in stacks if first < end else ():
            sent = range(max(0, first), min(end, self._experts(label)))
            place, packed = self._weights.place(name), self.packed.get(name)
            write_experts(self.buffers[place.buffer], place, sent.start, self.gguf, name, sent, packed)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for buffer in (*self.buffers.values(), *self._tables.buffers.values()):
            buffer.close()
        self._unpin()
        self._weights, self._tables = DeviceWeights(), DeviceWeights()
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
