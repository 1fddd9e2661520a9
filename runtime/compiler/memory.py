"""Memory planning: views and in-place results share their source's memory; every other value gets an
allocation in the arena.

The arena is planned from live ranges by first fit. Outputs have a buffer of their own, which the host reads.
Values that cross segments lie in a link buffer, because an arena's contents end with its segment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from satchel.quant import FORMATS
from satchel.runtime.compiler.optimized import Optimized
from satchel.runtime.graph import LEAVES, Dim, Node, Roots, Type
from satchel.runtime.ops import OPS
from satchel.runtime.plan import ALIGN, Bucket, align_up

KEPT = "out.kept"  # the buffer of values that are kept to the end of a step, for a check


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory of a value."""

    buffer: str  # by name
    offset: int
    stride: int  # bytes from one index of the first dimension to the next; 0 if packed
    size: int
    packed: bool = False  # a weight in the device's layout, whose stride only the device knows


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Result of memory planning."""

    allocations: dict[Node, Allocation]
    live: dict[Node, tuple[int, int]]  # first and last step that needs the value
    segment: dict[Node, int]  # of each step and copy
    early: dict[Node, int]  # of copies that are read early: the segment before which they are
    arena: dict[str, int]  # bytes per device, as for link and out
    link: dict[str, int]
    out: dict[str, int]
    kept: dict[str, int]


def storage(node: Node) -> Node:
    """The node that owns the memory of a value."""
    while node.op not in LEAVES and node.op != "copy" and (OPS[node.op].view or OPS[node.op].alias):
        node = node.src[0]
    return node


def window(node: Node) -> tuple[Node, int]:
    """The node whose memory a view shares, and the view's byte offset."""
    offset = 0
    while node.op not in LEAVES and node.op != "copy" and OPS[node.op].view:
        if node.op == "cols":
            offset += node.arg("start") * FORMATS[node.type.format].block_bytes
        node = node.src[0]
    return node, offset


def stride_of(type: Type) -> int:
    """Dense stride: bytes from one index of the first dimension to the next."""
    fmt = FORMATS[type.format]
    inner = [d for d in type.shape[1:] if not isinstance(d, Dim)]
    return fmt.row_bytes(prod(inner)) if inner else fmt.block_bytes


def arena_stride(type: Type) -> int:
    """As stride_of, but never a multiple of 1024: rows at such strides map to few cache sets and evict each
    other.
    """
    stride = stride_of(type)
    return stride + ALIGN if len(type.shape) > 1 and stride % 1024 == 0 else stride


def nbytes(type: Type, bucket: Bucket) -> int:
    return stride_of(type) * bucket.size(type.shape[0])


def hoist(order: Sequence[Node], device: dict[Node, str]) -> list[Node]:
    """Reorders copies. A copy whose source is known before its device's turn begins moves to the start of the
    turn, so it does not cut the turn into two segments. Copies and views wait for the next step on their
    device, so they begin no turn of their own.
    """
    done: list[Node] = []
    known: set[Node] = set()
    copies: list[Node] = []
    steps: list[Node] = []
    waiting: dict[str, list[Node]] = {}
    here = ""
    for node in order:
        where = device.get(node, here)
        if node.op not in LEAVES and (node.op == "copy" or OPS[node.op].view):
            waiting.setdefault(where, []).append(node)
            continue
        if where != here:
            here = where
            done += copies + steps
            known.update(copies, steps)
            copies, steps = [], []
        if node.op not in LEAVES:
            for late in waiting.pop(here, ()):
                (copies if late.op == "copy" and late.src[0] in known else steps).append(late)
        steps.append(node)
    return [*done, *copies, *steps, *(node for late in waiting.values() for node in late)]


def cut(
    order: list[Node],
    device: dict[Node, str],
    streamed: Collection[str] = (),
    begins: Collection[Node] = (),
    gated: bool = True,
) -> dict[Node, int]:
    """Segment number of each step and copy. A new segment begins where the device changes, where a copy comes
    in, where a step waits for the host (if `gated`) or is in `begins`, and, on the devices `streamed`, where
    a layer begins.
    """
    segment: dict[Node, int] = {}
    number, here, has_steps, label = -1, "", False, ""
    for node in order:
        if node.op in LEAVES or (node.op != "copy" and OPS[node.op].view):
            continue
        waits = node in begins or (gated and node.op != "copy" and OPS[node.op].waits)
        layer = node.op != "copy" and node.name != label and here in streamed
        if device[node] != here or ((node.op == "copy" or waits or layer) and has_steps):
            number, here, has_steps = number + 1, device[node], False
        if node.op != "copy":
            has_steps, label = True, node.name
        segment[node] = number
    return segment


def assign(
    order: list[Node],
    optimized: Optimized,
    bucket: Bucket,
    begins: Collection[Node] = (),
    kept: Collection[Node] = (),
    gated: bool = True,
) -> MemoryPlan:
    """Allocations of all computed values, for steps in this order. begins: steps that begin a segment. kept:
    values that nothing overwrites before the step ends. gated: as of cut().
    """
    live = _live_ranges(order, optimized.roots)
    live |= {node: (live[node][0], len(order)) for node in kept if node in live}
    device = optimized.assignment.device
    segment = cut(order, device, optimized.assignment.streamed, begins, gated)
    begun = dict[int, int]()  # of each segment its first step
    for i, node in enumerate(order):
        if node in segment:
            begun.setdefault(segment[node], i)
    early = _early(segment, device)
    for copy, before in early.items():
        live[copy] = min(live[copy][0], begun[before]), live[copy][1]
    memory = MemoryPlan({}, live, segment, early, {}, {}, {}, {})
    links = _crossing(segment)
    outputs = {storage(r) for r in optimized.roots if storage(r).op not in LEAVES} - links
    for name in dict.fromkeys(device.values()):
        mine = [n for n in live if device[n] == name]
        inner = [n for n in mine if n not in outputs and n not in links]
        for buffer, sizes, nodes in (
            ("arena", memory.arena, [n for n in inner if n not in kept]),
            (KEPT, memory.kept, [n for n in inner if n in kept]),
            ("link", memory.link, [n for n in mine if n in links]),
            ("out", memory.out, [n for n in mine if n in outputs]),
        ):
            sizes[name] = _first_fit(buffer, nodes, live, bucket, memory.allocations)
    return memory


def _early(segment: Mapping[Node, int], device: Mapping[Node, str]) -> dict[Node, int]:
    """Of copies whose source's device begins another segment before the value is used: that segment, before
    which the value is read. segment, device: of each step and copy.
    """
    turns: dict[str, list[int]] = {}
    for node, number in segment.items():
        turns.setdefault(device[node], []).append(number)
    found: dict[Node, int] = {}
    for copy in (node for node in segment if node.op == "copy"):
        source = storage(copy.src[0])
        own = turns[device[source]]
        after = bisect_right(own, segment[source])
        if after < len(own) and own[after] < segment[copy]:
            found[copy] = own[after]
    return found


def _crossing(segment: dict[Node, int]) -> set[Node]:
    """Values that are copied between devices or read by a later segment."""
    found = {node for node in segment if node.op == "copy"}
    for node, number in segment.items():
        bases = (storage(s) for s in node.src)
        found.update(b for b in bases if b in segment and segment[b] != number)
    return found


def _live_ranges(order: list[Node], roots: Roots) -> dict[Node, tuple[int, int]]:
    """First and last step that needs each computed value."""
    live: dict[Node, tuple[int, int]] = {}
    for i, node in enumerate(order):
        if storage(node) is node and node.op not in LEAVES:
            live[node] = (i, i)
        for source in node.src:
            base = storage(source)
            if base in live:
                live[base] = (live[base][0], i)
    for root in roots:
        base = storage(root)
        if base in live:
            live[base] = (live[base][0], len(order))
    return live


def _first_fit(
    buffer: str,
    nodes: list[Node],
    live: dict[Node, tuple[int, int]],
    bucket: Bucket,
    allocations: dict[Node, Allocation],
) -> int:
    """Puts each value at the lowest offset that is free during its live range; gives the arena's size in
    bytes.
    """
    peak = 0
    taken: list[tuple[int, int, int]] = []  # start, end, last step
    for node in sorted(nodes, key=lambda node: live[node][0]):
        first, last = live[node]
        taken = [t for t in taken if t[2] >= first]
        stride = arena_stride(node.type) if buffer == "arena" else stride_of(node.type)
        size, offset = stride * bucket.size(node.type.shape[0]), 0
        for start, end, _ in sorted(taken):
            if offset + size <= start:
                break
            offset = max(offset, end)
        allocations[node] = Allocation(buffer, offset, stride, size)
        taken.append((offset, align_up(offset + size), last))
        peak = max(peak, align_up(offset + size))
    return peak
