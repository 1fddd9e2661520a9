"""Compiles a graph to a Plan: passes over the graph, each verified, then memory planning and lowering for one
bucket.

`optimize` runs once per graph and set of devices; `compile` once per bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from satchel.runtime.compiler.expand import expand
from satchel.runtime.compiler.expert_cache import split
from satchel.runtime.compiler.fold import fold
from satchel.runtime.compiler.fuse import fuse
from satchel.runtime.compiler.layout import layout
from satchel.runtime.compiler.lower import lower
from satchel.runtime.compiler.memory import assign, hoist
from satchel.runtime.compiler.merge import merge
from satchel.runtime.compiler.overlap import Ordered, overlap
from satchel.runtime.compiler.place import DeviceAssignment, place
from satchel.runtime.compiler.push_down import push_down
from satchel.runtime.compiler.verify import verify_graph, verify_plan
from satchel.runtime.graph import Node, Roots, toposort
from satchel.runtime.plan import Bucket, Plan, WeightPlaces


class CompileTarget(Protocol):
    """A device as the passes see it. refusal() gives the reason why it cannot compute a node, or ""."""

    name: str

    def refusal(self, node: Node) -> str: ...


@dataclass(frozen=True, slots=True)
class Context:
    """What the passes know beside the graph."""

    targets: tuple[CompileTarget, ...]  # in order of preference
    wanted: Callable[[Node], str]  # the device that the placement wants for a node
    activations: int = 8  # bits of the activations of quantized weights: 8 (the format's own) or 16
    # A device without 16-bit products is an error; otherwise it takes the format's activations.
    demanded: bool = True
    # Devices of states that an earlier graph has placed, by name.
    homes: Mapping[str, str] = field(default_factory=dict)
    streamed: Collection[str] = ()  # devices that run layer by layer
    long: int = 0  # tokens from which on a prompt takes the expanded form of MLA; 0: never
    # Number of experts that a second device caches, by layer label.
    expert_cache: Mapping[str, int] = field(default_factory=dict)

    def target(self, name: str) -> CompileTarget:
        return next(t for t in self.targets if t.name == name)


Pass = Callable[[Roots, Context], Roots]
PIPELINE: tuple[Pass, ...] = (fold, push_down, split, expand, merge, layout, fuse)
Trace = Callable[[str, Roots], None]


@dataclass(frozen=True, slots=True)
class Optimized:
    """A graph after the passes, and the device of each node."""

    roots: Roots
    assignment: DeviceAssignment


def optimize(roots: Roots, context: Context, trace: Trace | None = None) -> Optimized:
    """Runs the pipeline; `trace` sees the graph after each pass."""
    verify_graph(roots)
    for step in PIPELINE:
        roots = step(roots, context)
        verify_graph(roots)
        if trace:
            trace(step.__name__, roots)
    assignment = place(roots, context)
    verify_graph(assignment.roots)
    if trace:
        trace("place", assignment.roots)
    return Optimized(assignment.roots, assignment)


def order_of(optimized: Optimized) -> Ordered:
    """The order of steps that every plan of this graph uses."""
    device = optimized.assignment.device
    ordered = overlap(hoist(toposort(optimized.roots), device), device)
    return Ordered(hoist(ordered.order, device), ordered.begins)


def compile(
    optimized: Optimized,
    bucket: Bucket,
    weights: Mapping[str, WeightPlaces],
    states: Mapping[str, Mapping[str, int]],
) -> Plan:
    """The plan of one bucket. weights: the tensors of each device; states: offsets of its states,
    by device.
    """
    ordered = order_of(optimized)
    memory = assign(ordered.order, optimized, bucket, ordered.begins)
    plan = lower(ordered.order, optimized, bucket, memory, weights, states)
    verify_plan(plan)
    return plan
