"""Graph to Plan: a tuple of passes over the graph, each verified, then memory and lowering for one bucket.

`optimize` runs once per graph and set of devices; `compile` once per bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from satchel.runtime.compiler.expand import expand
from satchel.runtime.compiler.fold import fold
from satchel.runtime.compiler.fuse import fuse
from satchel.runtime.compiler.hot import split
from satchel.runtime.compiler.layout import layout
from satchel.runtime.compiler.lower import lower
from satchel.runtime.compiler.memory import assign, hoist
from satchel.runtime.compiler.merge import merge
from satchel.runtime.compiler.overlap import Ordered, overlap
from satchel.runtime.compiler.place import PlacedGraph, place
from satchel.runtime.compiler.sink import sink
from satchel.runtime.compiler.verify import verify_graph, verify_plan
from satchel.runtime.graph import Node, Roots, toposort
from satchel.runtime.plan import Bucket, Plan, WeightPlaces


class Target(Protocol):
    """What a pass asks of a device: why it cannot do a node, or "" where it can."""

    name: str

    def refusal(self, node: Node) -> str: ...


@dataclass(frozen=True, slots=True)
class Context:
    """What passes may look at: the devices in order of preference, which of them a node is wanted on, and the
    bits of the activations that quantized weights meet: 8, as their format says, or 16; where a device has no
    product for 16 it is an error if they were demanded, else the format's are taken. homes: devices of
    states that an earlier graph has placed, by name. streamed: devices whose layers run one by one.
    long: tokens of a sequence from which on its prompt is worth keys and values of its own, 0: none is.
    hot: of how many experts a second device has a copy, by the label of a layer.
    """

    targets: tuple[Target, ...]
    wanted: Callable[[Node], str]
    activations: int = 8
    demanded: bool = True
    homes: Mapping[str, str] = field(default_factory=dict)
    streamed: Collection[str] = ()
    long: int = 0
    hot: Mapping[str, int] = field(default_factory=dict)

    def target(self, name: str) -> Target:
        return next(t for t in self.targets if t.name == name)


Pass = Callable[[Roots, Context], Roots]
PIPELINE: tuple[Pass, ...] = (fold, sink, split, expand, merge, layout, fuse)
Trace = Callable[[str, Roots], None]


@dataclass(frozen=True, slots=True)
class Optimized:
    """A graph after the passes, and the device of each node."""

    roots: Roots
    placement: PlacedGraph


def optimize(roots: Roots, context: Context, trace: Trace | None = None) -> Optimized:
    """Runs the pipeline; `trace` sees the graph after each pass."""
    verify_graph(roots)
    for step in PIPELINE:
        roots = step(roots, context)
        verify_graph(roots)
        if trace:
            trace(step.__name__, roots)
    placement = place(roots, context)
    verify_graph(placement.roots)
    if trace:
        trace("place", placement.roots)
    return Optimized(placement.roots, placement)


def order_of(optimized: Optimized) -> Ordered:
    """The order in which the steps of every plan of this graph stand."""
    device = optimized.placement.device
    ordered = overlap(hoist(toposort(optimized.roots), device), device)
    return Ordered(hoist(ordered.order, device), ordered.begins)


def compile(
    optimized: Optimized,
    bucket: Bucket,
    weights: Mapping[str, WeightPlaces],
    states: Mapping[str, Mapping[str, int]],
) -> Plan:
    """The plan of one bucket. weights: where each device has its tensors; states: the offset of each of its
    states, by device.
    """
    ordered = order_of(optimized)
    memory = assign(ordered.order, optimized, bucket, ordered.begins)
    plan = lower(ordered.order, optimized, bucket, memory, weights, states)
    verify_plan(plan)
    return plan
