"""Measures how long the members of a group take to add up what they have, and caches it beside the speeds of
devices. The time of an all-reduce is its latency and its bytes at a rate.

Plans with few and with many all-reduces in a row are run: the difference is theirs alone.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from satchel.runtime import ops
from satchel.runtime.compiler import compile, optimize_ranks
from satchel.runtime.compiler.context import Context
from satchel.runtime.compiler.lower import state_layout
from satchel.runtime.device.group import GroupDevice
from satchel.runtime.device.nccl import nccl_asked
from satchel.runtime.engine.program import DeviceMemory, Program
from satchel.runtime.graph import TOKENS, Graph, Roots, Type
from satchel.runtime.placement.predict import PROMPT
from satchel.runtime.placement.speeds import cache_file, group_key, read_cache, write_cache
from satchel.runtime.plan import Bucket
from satchel.runtime.weights.packing import PackedWeights
from satchel.runtime.weights.resident import Uploaded

WIDTH = 4096  # numbers of a token: 16 KB, and 8 MB of a prompt
LONG = 4096  # tokens of the longest step: 64 MB
FEW, MANY = 2, 18  # all-reduces of the two plans
RUNS = 9  # timed runs of each; their median counts
VERSION = 2


class CollectiveSpeed(NamedTuple):
    """Speed of a group's all-reduces."""

    latency: float  # seconds of one of a token
    rate: float  # bytes per second that a longer one adds
    library: str = ""  # the vendor's library that adds up the longest; "": none does

    def seconds(self, reduces: int, nbytes: float) -> float:
        """Seconds of so many all-reduces of so many bytes in all."""
        return reduces * self.latency + nbytes / self.rate


def collective_speed(group: GroupDevice, cache: Path | None = None) -> CollectiveSpeed:
    """From the cache file, or measured on the group, which must be idle. cache: the file; None: the
    user's.
    """
    path = cache or cache_file().with_name("collectives.json")
    key = " ".join(map(str, [VERSION, group.backend.name, *group_key(group)]))
    found = read_cache(path).get(key)
    if isinstance(found, list) and len(found) == 3 and all(isinstance(x, float) and x > 0 for x in found[:2]):
        return CollectiveSpeed(found[0], found[1], str(found[2]))
    speed = measured_now(group)
    write_cache(path, read_cache(path) | {key: list(speed)})
    return speed


def measured_now(group: GroupDevice) -> CollectiveSpeed:
    small, large = (_seconds(group, tokens) for tokens in (1, PROMPT))
    if nccl_asked():
        _run(group, LONG, FEW)  # the group finds whether its own way or the library is faster
    rate = 4 * WIDTH * (PROMPT - 1) / max(1e-9, large - small)
    return CollectiveSpeed(small, rate, group.group_info().library)


def _seconds(group: GroupDevice, tokens: int) -> float:
    """Seconds of one all-reduce of so many tokens."""
    few, many = (_run(group, tokens, count) for count in (FEW, MANY))
    return max(1e-9, (many - few) / (MANY - FEW))


def _chain(count: int) -> Roots:
    """So many all-reduces in a row."""
    graph = Graph()
    graph.label = "all-reduces"
    node = ops.pad(graph.node("input", (), Type((TOKENS, 1), "f32"), "x"), before=0, after=WIDTH - 1)
    for _ in range(count):
        node = ops.reduce_add(node)
    return (node,)


def _run(group: GroupDevice, tokens: int, count: int) -> float:
    """Median seconds of a run of a plan with so many all-reduces."""
    weights = Uploaded({})
    contexts = []
    for rank, member in enumerate(group.members):
        targets = tuple(weights.targets([member], {}).values())
        contexts.append(Context(targets, lambda node, name=member.name: name, rank=rank))  # type: ignore[misc]
    groups = {group.name: tuple(m.name for m in group.members)}
    optimized = optimize_ranks(groups, _chain(count), contexts)
    states = state_layout(optimized)
    loaded = weights.load(group.members, {m.name: PackedWeights({}, frozenset()) for m in group.members})
    plan = compile(optimized, Bucket(tokens, 1), loaded, states)
    memory = {m.name: DeviceMemory(m, 64) for m in group.members}
    program = Program(plan, memory, weights.steps(tokens, loaded), None, {group.name: group})
    try:
        program.counts[:2] = tokens, 1
        taken, out = [], np.empty((1, WIDTH), np.float32)
        for _ in range(1 + RUNS):
            began = time.perf_counter()
            program.run()
            program.read(out)
            taken.append(time.perf_counter() - began)
        return statistics.median(taken[1:])
    finally:
        program.close()
        for held in memory.values():
            held.state.close()
