"""Compiles a graph to a Plan: passes over the graph, each verified, then memory planning and lowering for one
bucket.

`optimize` runs once per graph and set of devices; `compile` once per bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from satchel.runtime.compiler.context import Context
from satchel.runtime.compiler.expand import expand
from satchel.runtime.compiler.fuse import fuse
from satchel.runtime.compiler.fuse_steps import fuse_steps
from satchel.runtime.compiler.joined import joined
from satchel.runtime.compiler.layout import layout
from satchel.runtime.compiler.lower import lower
from satchel.runtime.compiler.memory import assign, hoist
from satchel.runtime.compiler.merge import merge
from satchel.runtime.compiler.optimized import Optimized
from satchel.runtime.compiler.overlap import Ordered, overlap
from satchel.runtime.compiler.place import place
from satchel.runtime.compiler.sequence_parallel import divide_rows, least_tokens
from satchel.runtime.compiler.shard import BEFORE, shard
from satchel.runtime.compiler.split_experts import split
from satchel.runtime.compiler.verify import verify_graph, verify_plan
from satchel.runtime.graph import Node, Roots, toposort
from satchel.runtime.plan import Bucket, Plan, WeightPlaces
from satchel.runtime.shard.whole import whole_values

Pass = Callable[[Roots, Context], Roots]
PIPELINE: tuple[Pass, ...] = (*BEFORE, shard, split, expand, merge, layout, fuse)
Trace = Callable[[str, Roots], None]


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
    return Optimized(assignment.roots, assignment, context.targets)


def optimize_ranks(
    groups: Mapping[str, tuple[str, ...]],
    roots: Roots,
    contexts: Sequence[Context],
    trace: Trace | None = None,
) -> Optimized:
    """optimize() for each rank of groups of devices; without groups, for the one context. groups: names of
    their members. `trace` sees the first rank's graph.
    """
    ranks = tuple(optimize(roots, c, trace if not c.rank else None) for c in contexts)
    return replace(ranks[0], groups=groups, ranks=ranks) if groups else ranks[0]


def _order_of(optimized: Optimized) -> Ordered:
    """The order of steps in a plan of this graph."""
    device = optimized.assignment.device
    ordered = overlap(hoist(toposort(optimized.roots), device), device)
    return Ordered(hoist(ordered.order, device), ordered.begins)


def compile(
    optimized: Optimized,
    bucket: Bucket,
    weights: Mapping[str, WeightPlaces],
    states: Mapping[str, Mapping[str, int]],
    checked: bool = False,
    gated: bool = True,
) -> Plan:
    """The plan of one bucket. weights: the tensors of each device; states: offsets of its states,
    by device. checked: of groups, whole values are kept to the end of the step. gated: a segment begins
    where a step waits for the host; False: the host has filled in all inputs before the step.
    """
    fused = [fuse_steps(own, bucket) for own in _by_rows(optimized, bucket)]
    if not optimized.ranks:
        return _compiled(fused[0], bucket, weights, states, gated=gated)
    kept = _whole(optimized, fused) if checked else [frozenset[Node]()] * len(fused)
    plans = [_compiled(own, bucket, weights, states, k) for own, k in zip(fused, kept, strict=True)]
    return joined(optimized.groups, plans)


def _whole(optimized: Optimized, ranks: Sequence[Optimized]) -> tuple[frozenset[Node], ...]:
    """The whole values of each rank's graph."""
    device = {node: name for own in ranks for node, name in own.assignment.device.items()}
    return whole_values([own.roots for own in ranks], lambda node: optimized.stage(device[node]))


def _by_rows(optimized: Optimized, bucket: Bucket) -> tuple[Optimized, ...]:
    """The graphs of ranks. In long steps each group divides the rows of its own layers."""
    ranks, least = optimized.all, least_tokens()
    for members in optimized.groups.values() if 0 < least <= bucket.tokens else ():
        ranks = tuple(divide_rows(own, bucket, members) for own in ranks)
    return ranks


def _compiled(
    optimized: Optimized,
    bucket: Bucket,
    weights: Mapping[str, WeightPlaces],
    states: Mapping[str, Mapping[str, int]],
    kept: Collection[Node] = (),
    gated: bool = True,
) -> Plan:
    """The plan of one rank."""
    verify_graph(optimized.roots)
    ordered = _order_of(optimized)
    memory = assign(ordered.order, optimized, bucket, ordered.begins, kept, gated)
    plan = lower(ordered.order, optimized, bucket, memory, weights, states)
    verify_plan(plan)
    return plan
