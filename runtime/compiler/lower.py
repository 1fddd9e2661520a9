"""Lowering: nodes become rows of hal.h's tables: one row per step, a view for its output and each input, one
op entry per name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from satchel import cext
from satchel.quant import FORMATS
from satchel.runtime.compiler.memory import (
    KEPT,
    Allocation,
    MemoryPlan,
    nbytes,
    storage,
    stride_of,
    window,
)
from satchel.runtime.compiler.optimized import Optimized
from satchel.runtime.graph import LEAVES, Array, Dim, Node, leaves
from satchel.runtime.ops import OPS
from satchel.runtime.plan import (
    COUNTS_BYTES,
    ONE,
    PACKED,
    Bucket,
    BufferSpec,
    DeviceTransfer,
    Field,
    Plan,
    PlanOutput,
    PlanStep,
    Segment,
    WeightPlaces,
    align_up,
)

USAGE = {
    "weights": 0,
    "const": 1,
    "state": 2,
    "arena": 3,
    "step": 4,
    "out": 5,
    "link": 6,
    "prefetch": 7,
}  # HAL_WEIGHT.. of hal.h


def usage(name: str) -> int:
    """HAL usage of a buffer, from its name up to the dot; scratch for any other name."""
    return USAGE.get(name.split(".")[0], USAGE["arena"])


@dataclass(slots=True)
class Tables:
    """A segment's tables under construction."""

    device: str
    buffers: dict[str, int]
    sizes: dict[str, int]
    transfers: list[DeviceTransfer] = field(default_factory=list)
    steps: list[PlanStep] = field(default_factory=list)
    rows: list[tuple[int, int, int, int]] = field(default_factory=list)
    views: list[Array] = field(default_factory=list)
    ops: dict[str, int] = field(default_factory=dict)
    args: bytearray = field(default_factory=bytearray)

    def finish(self) -> Segment:
        ops = np.zeros(len(self.ops), cext.dtype_of("hal_op"))
        ops["name"] = [name.encode() for name in self.ops]
        ops["arg_size"] = [cext.arg_size(name) for name in self.ops]
        return Segment(
            self.device,
            tuple(self.transfers),
            tuple(self.steps),
            np.array(self.rows, cext.dtype_of("hal_step")),
            np.array(self.views, cext.dtype_of("hal_view")).reshape(-1),
            ops,
            bytes(self.args),
            tuple(BufferSpec(name, usage(name), self.sizes[name]) for name in self.buffers),
        )


class Lowering:
    """State of lowering one graph for one bucket."""

    def __init__(
        self,
        order: list[Node],
        optimized: Optimized,
        bucket: Bucket,
        memory: MemoryPlan,
        weights: Mapping[str, WeightPlaces],
        states: Mapping[str, Mapping[str, int]],
    ) -> None:
        self.order, self.bucket, self.memory, self.weights = order, bucket, memory, weights
        self.device, self.states = optimized.assignment.device, states
        self.fields = step_fields(order, bucket)
        self.field_offset = {f.name: f.offset for f in self.fields}
        self.consts: dict[Node, int] = {}
        at = 0
        for node in (n for n in order if n.op == "const"):
            self.consts[node] = at
            at = align_up(at + nbytes(node.type, bucket))
        self.const_bytes = at

    def block_bytes(self) -> int:
        last = self.fields[-1]
        return align_up(last.offset + last.size)

    def const_image(self) -> bytes:
        image = bytearray(self.const_bytes)
        for node, at in self.consts.items():
            data = node.arg("value").array.tobytes()
            image[at : at + len(data)] = data
        return bytes(image)

    def tables(self, device: str) -> Tables:
        sizes = {
            "step": self.block_bytes(),
            "arena": self.memory.arena.get(device, 0),
            "state": self.states[device][""],
            "const": self.const_bytes,
            "out": self.memory.out.get(device, 0),
            "link": self.memory.link.get(device, 0),
            **({KEPT: kept} if (kept := self.memory.kept.get(device, 0)) else {}),
            **self.weights[device].sizes(),
        }
        return Tables(device, {name: i for i, name in enumerate(sizes)}, sizes)

    def place(self, node: Node, device: str) -> Allocation:
        """Buffer, offset and stride of any node, as a step on this device sees it. A state that its state
        buffer does not have is brought there with the weights.
        """
        if node.op == "weight":
            buffer, offset, packed = self.weights[device].place(node.name)
            return weight_place(node, buffer, offset, packed)
        if node.op == "state" and node.name not in self.states[device]:
            buffer, offset, _ = self.weights[device].place(node.name)
            return Allocation(buffer, offset, stride_of(node.type), nbytes(node.type, self.bucket))
        if node.op in LEAVES:
            buffer, offset = {
                "input": ("step", self.field_offset.get(node.name, 0)),
                "state": ("state", self.states[device].get(node.name, 0)),
                "const": ("const", self.consts.get(node, 0)),
            }[node.op]
            return Allocation(buffer, offset, stride_of(node.type), nbytes(node.type, self.bucket))
        if node in self.memory.allocations:
            return self.memory.allocations[node]
        base = self.place(node.src[0], device)
        if node.op == "cols":
            offset = node.arg("start") * FORMATS[node.type.format].block_bytes
            return Allocation(base.buffer, base.offset + offset, base.stride, base.size - offset)
        return base

    def add_step(self, node: Node, tables: Tables) -> None:
        args = {k: v for k, v in node.args if k != "format"}
        at = len(tables.args)
        tables.args += cext.pack_arg(node.op, args)
        tables.rows.append(
            (tables.ops.setdefault(node.op, len(tables.ops)), len(node.src), len(tables.views), at)
        )
        tables.views.extend(
            view_row(n, self.place(n, tables.device), tables, self.bucket) for n in (node, *node.src)
        )
        shown = " ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in args.items())
        tables.steps.append(
            PlanStep(
                node.name,
                node.op,
                str(node.type),
                tuple(_shown(s) for s in node.src),
                self.weight_bytes(node),
                shown,
            )
        )

    def weight_bytes(self, node: Node) -> int:
        """Bytes of weights that a full step reads; of lookups and experts, only the rows that it
        can select.
        """
        if OPS[node.op].gathers:
            return stride_of(node.src[0].type) * self.bucket.tokens
        asked, made_by = 1 << 62, OPS[node.op]
        if made_by.experts:
            value, dimension = made_by.per_token
            each = (node, *node.src)[value].shape[dimension]
            asked = self.bucket.size(node.shape[0]) * self.bucket.size(each)
        read = (s.type for s in node.src if s.op == "weight")
        return sum(stride_of(w) * min(self.bucket.size(w.shape[0]), asked) for w in read)

    def transfer(self, node: Node, device: str) -> DeviceTransfer:
        source = self.device[node.src[0]]
        start, end = self.place(node.src[0], source), self.place(node, device)
        first = node.shape[0]
        if start.stride != end.stride:
            raise TypeError(f"{node.name}: a view of columns cannot cross devices")
        return DeviceTransfer(
            source,
            device,
            (start.buffer, start.offset),
            (end.buffer, end.offset),
            end.stride,
            self.bucket.size(first),
            first.count if isinstance(first, Dim) else -1,
            self.memory.early.get(node, -1),
            node.name if node.src[0].op == "top_experts" else "",
        )

    def segments(self) -> tuple[Segment, ...]:
        made: list[Tables] = []
        for node, number in self.memory.segment.items():
            device = self.device[node]
            if number == len(made):
                made.append(self.tables(device))
            if node.op == "copy":
                made[-1].transfers.append(self.transfer(node, device))
            else:
                self.add_step(node, made[-1])
        return tuple(t.finish() for t in made)


def weight_place(node: Node, buffer: str, offset: int, packed: int) -> Allocation:
    """Memory of a weight: `packed` bytes in the device's layout, or as in the file where packed is 0."""
    if packed:
        return Allocation(buffer, offset, 0, packed, packed=True)
    return Allocation(buffer, offset, stride_of(node.type), nbytes(node.type, ONE))


def view_row(node: Node, place: Allocation, tables: Tables, bucket: Bucket) -> Array:
    """The hal_view of a node."""
    first = node.shape[0]
    row = np.zeros((), cext.dtype_of("hal_view"))
    row["buffer"] = tables.buffers[place.buffer]
    row["format"] = FORMATS[node.type.format].id | (PACKED if place.packed else 0)
    row["offset"], row["stride"], row["ndim"] = place.offset, place.stride, len(node.shape)
    row["count"] = first.count if isinstance(first, Dim) else -1
    row["shape"] = 1
    row["shape"][: len(node.shape)] = [bucket.size(d) for d in node.shape]
    return row


def _shown(node: Node) -> str:
    while node.op not in LEAVES and node.op != "copy" and OPS[node.op].view:
        node = node.src[0]
    return f"{node.name}:{node.type.format}" if node.op in LEAVES else f"{node.op}@{node.name}"


def step_fields(order: list[Node], bucket: Bucket) -> tuple[Field, ...]:
    """Layout of the step block: counts, then the inputs, by who reads them and how large they are: block
    tables behind the others, and behind them what a segment that waits for the host reads alone. So each run
    sends a beginning of the block.
    """
    at = COUNTS_BYTES
    found = []
    inputs = (n for n in order if n.op == "input")
    for node in sorted(inputs, key=lambda n: (_place(n.name), n.name)):
        at = align_up(at, 8)
        found.append(Field(node.name, node.type, at, nbytes(node.type, bucket)))
        at += found[-1].size
    return tuple(found)


def _place(name: str) -> int:
    """Where an input stands in the step block, among the others."""
    late = ("token_bitmask", "edits")
    return 2 + late.index(name) if name in late else int(name.startswith("table"))


def state_layout(optimized: Optimized) -> dict[str, dict[str, int]]:
    """Byte offset of each state in the state buffer of its device, by device; the entry "" is the buffer's
    size.
    """
    if optimized.ranks:
        return {name: layout for own in optimized.ranks for name, layout in state_layout(own).items()}
    assignment, any_bucket = optimized.assignment, Bucket(1, 1)
    layouts: dict[str, dict[str, int]] = {name: {"": 0} for name in dict.fromkeys(assignment.device.values())}
    for node in leaves(optimized.roots, "state"):
        layout = layouts[assignment.homes[node.name]]
        layout[node.name] = layout[""]
        layout[""] = align_up(layout[""] + nbytes(node.type, any_bucket))
    return layouts


def lower(
    order: list[Node],
    optimized: Optimized,
    bucket: Bucket,
    memory: MemoryPlan,
    weights: Mapping[str, WeightPlaces],
    states: Mapping[str, Mapping[str, int]],
) -> Plan:
    work = Lowering(order, optimized, bucket, memory, weights, states)
    device = optimized.assignment.device
    results = [r for r in optimized.roots if storage(r).op not in LEAVES]
    places = [(device[r], memory.allocations[storage(r)], r.type) for r in results]
    outputs = tuple(PlanOutput(name, place.buffer, place.offset, type) for name, place, type in places)
    consts = dict.fromkeys(device.values(), work.const_image())
    return Plan(
        bucket, work.fields, work.block_bytes(), work.segments(), consts, outputs, optimized.assignment.moved
    )


def probe(
    node: Node, device: str, packed: Mapping[str, int] = MappingProxyType({}), bucket: Bucket = ONE
) -> Segment:
    """A plan of one step, to ask a device whether it supports the op. Every operand has its own buffer, in
    which a view of columns lies as in the real plan. packed: bytes of the weights that the device packs, by
    name.
    """
    places = [probe_place(f"operand.{i}", n, packed, bucket) for i, n in enumerate((node, *node.src))]
    tables = Tables(device, {p.buffer: i for i, p in enumerate(places)}, {p.buffer: p.size for p in places})
    result = places[int(OPS[node.op].alias)]  # of an op in place: its first source
    for place, operand in zip((result, *places[1:]), (node, *node.src), strict=True):
        tables.views.append(view_row(operand, place, tables, bucket))
    args = {k: v for k, v in node.args if k != "format"}
    tables.args += cext.pack_arg(node.op, args)
    tables.ops[node.op] = 0
    tables.rows.append((0, len(node.src), 0, 0))
    return tables.finish()


def probe_place(buffer: str, node: Node, packed: Mapping[str, int], bucket: Bucket) -> Allocation:
    """Allocation of an operand in its own buffer."""
    if node.op == "weight":
        return weight_place(node, buffer, 0, packed.get(node.name, 0))
    base, offset = window(node)
    return Allocation(buffer, offset, stride_of(base.type), nbytes(base.type, bucket))
