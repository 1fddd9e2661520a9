"""A compiled plan: flat tables of C structs per device, the names that belong to them, and a readable
listing.

A plan is immutable; everything that differs from step to step is in the step block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from satchel.runtime.graph import ROWS, Array, Dim, Type

ALIGN = 64
COUNTS_BYTES = 32  # eight int32 counts open the step block
PACKED = 1 << 24  # HAL_PACKED of hal.h: beside the format of a view of a packed weight


def align_up(n: int, to: int = ALIGN) -> int:
    return -(-n // to) * to


@dataclass(frozen=True, slots=True)
class Bucket:
    """Capacity of a plan: the most tokens and output rows of one step."""

    tokens: int
    rows: int

    def size(self, dim: int | Dim) -> int:
        if not isinstance(dim, Dim):
            return dim
        return self.rows if dim.count == ROWS.count else -(-self.tokens // dim.ranks)


ONE = Bucket(1, 1)


class WeightPlace(NamedTuple):
    """Location of a weight in a device's memory."""

    buffer: str
    offset: int
    packed: int = 0  # bytes in the device's packed layout; 0: it lies as in the file


class WeightPlaces(Protocol):
    """The weights of one device: their locations by tensor name, and the size of each buffer that
    holds some.
    """

    def place(self, name: str) -> WeightPlace: ...

    def sizes(self) -> dict[str, int]: ...


@dataclass(frozen=True, slots=True)
class Field:
    """One input in the step block."""

    name: str
    type: Type
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """A buffer that a segment needs (hal_bufdesc). The memory is a Buffer of runtime/device/device.py."""

    name: str
    usage: int
    size: int


@dataclass(frozen=True, slots=True)
class PlanStep:
    """Description of one step of a segment: for the listing, for --check, and for counting bytes."""

    label: str
    op: str
    out: str
    inputs: tuple[str, ...]
    weight_bytes: int
    args: str


@dataclass(frozen=True, slots=True)
class DeviceTransfer:
    """Copy of a value between devices before a segment runs: `stride` bytes for each row."""

    source: str
    target: str
    source_at: tuple[str, int]
    target_at: tuple[str, int]
    stride: int
    rows: int  # number of rows, unless count gives it
    count: int  # index into the counts of the step block
    # Segment before which the source is read early, because its device begins other work then; -1: on demand.
    before: int = -1
    picks: str = ""  # label of the layer whose expert ids (int32) the value holds; "": any other value
    # Of a value that goes to a group: its other members, and its place there.
    also: tuple[tuple[str, tuple[str, int]], ...] = ()

    @property
    def targets(self) -> tuple[tuple[str, tuple[str, int]], ...]:
        """Every device that gets the value, and its place there."""
        return ((self.target, self.target_at), *self.also)


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive steps on one device. Tables are numpy arrays of hal.h's structs."""

    device: str
    transfers: tuple[DeviceTransfer, ...]
    steps: tuple[PlanStep, ...]
    step_table: Array
    view_table: Array
    op_table: Array
    args: bytes
    buffers: tuple[BufferSpec, ...]  # in the order in which the views number them
    # Of a group of devices: the segment of each member, of which the tables above are the first's; (): it is
    # a segment of one device.
    members: tuple[Segment, ...] = ()

    @property
    def all(self) -> tuple[Segment, ...]:
        """The segments of single devices that it stands for."""
        return self.members or (self,)


@dataclass(frozen=True, slots=True)
class PlanOutput:
    """Location of a result for the host: the output buffer, or the link buffer if a later segment reads it
    too.
    """

    device: str
    buffer: str
    offset: int
    type: Type


@dataclass(frozen=True, slots=True)
class Plan:
    """Segments in the order in which they run, and the layout of the step block."""

    bucket: Bucket
    fields: tuple[Field, ...]
    block_bytes: int
    segments: tuple[Segment, ...]
    consts: dict[str, bytes]  # bytes of the constants, by device
    outputs: tuple[PlanOutput, ...]  # of the roots that are not states, in order
    moved: tuple[str, ...]

    @property
    def output(self) -> PlanOutput:
        return self.outputs[0]

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one full step reads."""
        alone = (own for segment in self.segments for own in segment.all)
        return sum(step.weight_bytes for segment in alone for step in segment.steps)

    @property
    def n_steps(self) -> int:
        return sum(len(segment.steps) for segment in self.segments)

    def listing(self) -> Iterator[str]:
        """The plan as lines of text, one per step."""
        number = 0
        for segment in self.segments:
            sizes = ", ".join(f"{b.name} {b.size:,} B" for b in segment.buffers if b.size)
            yield f"segment on {segment.device}: {len(segment.steps)} steps; {sizes}"
            for t in segment.transfers:
                targets = ", ".join(device for device, _ in t.targets)
                yield f"      copy {t.source} -> {targets}: {t.stride} B per row"
            for step in segment.steps:
                args = f" {step.args}" if step.args else ""
                yield f"{number:5d} {step.label:<8} {step.out} = {step.op}({', '.join(step.inputs)}){args}"
                number += 1
