"""Weight residency: where the weights of a model lie, and how each step reaches them.

Resident weights stay in memory that their device reads. Every other way wraps a residency (`Over`) and
overrides what it changes: streamed, prefetched, expert cache, adapters. The load composes them; the engine
and the dry run know this interface alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from satchel.runtime.compiler.context import Context
from satchel.runtime.compiler.target import DeviceTarget
from satchel.runtime.device.device import Buffer, Device
from satchel.runtime.graph import Array, Type
from satchel.runtime.weights.packing import PackedWeight, PackedWeights, Places, packed_by
from satchel.runtime.weights.weights import DeviceWeights

Targets = dict[str, DeviceTarget]  # by device, as the other two
PackedOn = Mapping[str, PackedWeights]
WeightsOn = Mapping[str, DeviceWeights]


class Pager:
    """What brings a layer's weights to a device in time. A program calls it in each of its steps."""

    def begin(self, fields: Mapping[str, Array], tokens: int) -> None:
        """Called before the first segment. fields: the step's inputs; tokens: how many it has."""

    def enter(self, label: str) -> None:
        """Called before each segment of the device, with its layer's label."""

    def entered(self) -> None:
        """Called when that segment was launched: before the host waits for anything."""

    def end(self) -> None:
        """Called after the last segment was launched, and before a step waits for the host."""


@dataclass(frozen=True, slots=True)
class StateBlocks:
    """Where a layer's keys or values lie, block after block."""

    buffer: Buffer
    start: int  # offset of block 0
    size: int  # bytes of a block
    table: str  # the input that has the block table


@dataclass(frozen=True, slots=True)
class StepWeights:
    """How the steps of one size reach their weights."""

    devices: WeightsOn
    pagers: Mapping[str, Pager] = field(
        default_factory=dict
    )  # by device, what brings a layer's weights there
    # Called with the expert ids (T, k) that a layer selects, if they cross devices.
    picked: Callable[[str, Array], None] | None = None


class Residency:
    """The weights of a model. The methods before load() need the file's header alone, those after it the
    loaded weights. repack: devices keep matrices in their packed layout.
    """

    def __init__(self, repack: bool = True) -> None:
        self.repack = repack

    def targets(self, devices: Sequence[Device], types: Mapping[str, Type]) -> Targets:
        """The devices as the compiler sees them, by name: with those of these weights that they pack."""
        return {d.name: DeviceTarget(d, packed_by(d, types) if self.repack else {}) for d in devices}

    def variant(self, tokens: int) -> int:
        """The smallest step that reaches its weights in the same way as one of so many tokens."""
        return 1

    def context(self, context: Context, tokens: int) -> Context:
        """What the passes know for steps of so many tokens."""
        return context

    def reads(self, device: str, names: Collection[str]) -> None:
        """Told before load(): the weights, or pieces of them, that the graphs with adapters of a group's
        member read.
        """

    def nbytes(self, device: str) -> int:
        """Bytes of buffers on a device besides the weights that steps of one token read."""
        return 0

    def add_places(self, device: str, packed: Mapping[str, PackedWeight], places: Places) -> None:
        """Adds the places of weights that are not in the file as such."""

    def load(self, devices: Sequence[Device], packed: PackedOn) -> WeightsOn:
        """Makes the weights that `packed` names readable by each device, those in it packed."""
        raise NotImplementedError

    def attach(self, states: Mapping[str, StateBlocks], block: int) -> None:
        """Told after load(): where keys and values lie, by the names of the states, and positions of a
        block.
        """

    def steps(self, tokens: int, loaded: WeightsOn) -> StepWeights:
        """How steps of so many tokens reach the loaded weights."""
        return StepWeights(loaded)

    def between_steps(self, idle: Callable[[], bool]) -> None:
        """Called before each step. Weights may move if idle(): no step is under way that may read them."""

    def value(self, name: str) -> Array | None:
        """Present values of a weight that is not in the file, in its format; None if the file has it."""
        return None

    def counters(self) -> dict[str, Any]:
        """What was counted so far, by the names of EngineStats."""
        return {}

    def close(self) -> None:
        """Frees what load() did not hand out."""


class Over(Residency):
    """A way of residency over another, `inner`: what it does not change is as there."""

    def __init__(self, inner: Residency) -> None:
        super().__init__(inner.repack)
        self.inner = inner

    def targets(self, devices: Sequence[Device], types: Mapping[str, Type]) -> Targets:
        return self.inner.targets(devices, types)

    def variant(self, tokens: int) -> int:
        return self.inner.variant(tokens)

    def context(self, context: Context, tokens: int) -> Context:
        return self.inner.context(context, tokens)

    def reads(self, device: str, names: Collection[str]) -> None:
        self.inner.reads(device, names)

    def nbytes(self, device: str) -> int:
        return self.inner.nbytes(device)

    def add_places(self, device: str, packed: Mapping[str, PackedWeight], places: Places) -> None:
        self.inner.add_places(device, packed, places)

    def load(self, devices: Sequence[Device], packed: PackedOn) -> WeightsOn:
        return self.inner.load(devices, packed)

    def attach(self, states: Mapping[str, StateBlocks], block: int) -> None:
        self.inner.attach(states, block)

    def steps(self, tokens: int, loaded: WeightsOn) -> StepWeights:
        return self.inner.steps(tokens, loaded)

    def between_steps(self, idle: Callable[[], bool]) -> None:
        self.inner.between_steps(idle)

    def value(self, name: str) -> Array | None:
        return self.inner.value(name)

    def counters(self) -> dict[str, Any]:
        return self.inner.counters()

    def close(self) -> None:
        self.inner.close()
