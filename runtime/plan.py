"""A compiled plan: flat tables of C structs for each device, the names that belong to them, and a listing for
people.

A plan is never changed after it is made; everything that differs from step to step is in the step block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from satchel.runtime.graph import Array, Dim, Type

ALIGN = 64
COUNTS_BYTES = 32  # eight int32 counts open the step block
PACKED = 1 << 24  # HAL_PACKED of hal.h: beside the format of a view of a packed weight


def align_up(n: int, to: int = ALIGN) -> int:
    return -(-n // to) * to


@dataclass(frozen=True, slots=True)
class Bucket:
    """The most tokens and output rows that a plan takes in one step."""

    tokens: int
    rows: int

    def size(self, dim: int | Dim) -> int:
        return dim if not isinstance(dim, Dim) else (self.tokens, self.rows)[dim.count]


class WeightPlace(NamedTuple):
    """Where a weight lies: buffer name and byte offset. packed: the bytes that it takes in the device's own
    order; 0 where it lies as in the file.
    """

    buffer: str
    offset: int
    packed: int = 0


class WeightPlaces(Protocol):
    """Where a device keeps its weights, by tensor name, and the size of each buffer that holds some."""

    def place(self, name: str) -> WeightPlace: ...

    def sizes(self) -> dict[str, int]: ...


@dataclass(frozen=True, slots=True)
class Field:
    """One input inside the step block."""

    name: str
    type: Type
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """A buffer that a segment needs (hal_bufdesc); runtime/device/device.py's Buffer is the memory itself."""

    name: str
    usage: int
    size: int


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step of a segment in words: for the listing, for --check, and for counting bytes."""

    label: str
    op: str
    out: str
    inputs: tuple[str, ...]
    weight_bytes: int
    args: str


@dataclass(frozen=True, slots=True)
class DeviceTransfer:
    """Copy of a value between devices before a segment runs: `stride` bytes for each of `rows` (or
    counts[count]) rows. before: the segment before which the source is read early, because its device begins
    other work then; -1: it is read when it is needed. picks: the label of the layer whose expert ids (int32)
    the value holds, "" for any other value.
    """

    source: str
    target: str
    source_at: tuple[str, int]
    target_at: tuple[str, int]
    stride: int
    rows: int
    count: int
    before: int = -1
    picks: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps in a row on one device. Tables are numpy arrays of hal.h's structs; buffers are in the order of
    the table.
    """

    device: str
    transfers: tuple[DeviceTransfer, ...]
    steps: tuple[PlanStep, ...]
    step_table: Array
    view_table: Array
    op_table: Array
    args: bytes
    buffers: tuple[BufferSpec, ...]


@dataclass(frozen=True, slots=True)
class PlanOutput:
    """Location of a result for the host: in the output buffer, or in the link buffer where a later segment
    reads it too.
    """

    device: str
    buffer: str
    offset: int
    type: Type


@dataclass(frozen=True, slots=True)
class Plan:
    """Segments in the order in which they run; `consts` are the bytes of each device's constants."""

    bucket: Bucket
    fields: tuple[Field, ...]
    block_bytes: int
    segments: tuple[Segment, ...]
    consts: dict[str, bytes]
    outputs: tuple[PlanOutput, ...]  # of the roots that are no states, in order
    moved: tuple[str, ...]

    @property
    def output(self) -> PlanOutput:
        return self.outputs[0]

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one step reads at a full bucket."""
        return sum(step.weight_bytes for segment in self.segments for step in segment.steps)

    @property
    def n_steps(self) -> int:
        return sum(len(segment.steps) for segment in self.segments)

    def listing(self) -> Iterator[str]:
        """The plan as lines of text, one a step."""
        number = 0
        for segment in self.segments:
            sizes = ", ".join(f"{b.name} {b.size:,} B" for b in segment.buffers if b.size)
            yield f"segment on {segment.device}: {len(segment.steps)} steps; {sizes}"
            for t in segment.transfers:
                yield f"      copy {t.source} -> {t.target}: {t.stride} B a row"
            for step in segment.steps:
                args = f" {step.args}" if step.args else ""
                yield f"{number:5d} {step.label:<8} {step.out} = {step.op}({', '.join(step.inputs)}){args}"
                number += 1
