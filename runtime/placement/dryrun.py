"""Dry run of a load from the file's header: no tensor is read, no memory is reserved.

The plans are the real ones, compiled for the real devices, over weights with places but no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from satchel.errors import DeviceError, ModelError, RequestError
from satchel.formats.gguf import GGUF
from satchel.runtime.api.options import Options
from satchel.runtime.compiler import Trace, compile
from satchel.runtime.compiler.lower import state_layout
from satchel.runtime.compiler.memory import nbytes
from satchel.runtime.compiler.optimized import Optimized
from satchel.runtime.compiler.stages import host_ids, stages
from satchel.runtime.device.device import Device, Info
from satchel.runtime.device.group import members_of
from satchel.runtime.engine.engine import bucket_of
from satchel.runtime.engine.sharded import divided_model
from satchel.runtime.graph import Roots, toposort
from satchel.runtime.layers.arch import Arch
from satchel.runtime.placement.devices import cache_room, driver_bytes, free_bytes
from satchel.runtime.placement.options import PlacementOptions
from satchel.runtime.placement.predict import Prediction
from satchel.runtime.placement.settle import Measure, Settled, dry_places, scratch
from satchel.runtime.placement.speeds import measured
from satchel.runtime.placement.step import settle_step
from satchel.runtime.plan import Bucket, Plan
from satchel.runtime.shard.division import Division
from satchel.runtime.shard.pieces import Piece
from satchel.runtime.weights.packing import of_device
from satchel.runtime.weights.residency import Residency, Targets
from satchel.runtime.weights.resident import Resident
from satchel.runtime.weights.sharded import piece_bytes

USUAL = Options()


@dataclass(frozen=True, slots=True)
class Share:
    """What one device would hold, in bytes."""

    device: str
    info: Info
    free: int  # memory that the model may take there
    weights: int  # that its steps read
    # Of these, bytes in the packed layout, in the process's memory; the rest is the mapped file or its copy.
    packed: int
    kv: int  # KV cache and recurrent states of all slots
    # Scratch of the plans for a full step and for one token, token table, prefetch buffers, the driver.
    compute: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.compute

    @property
    def fits(self) -> bool:
        """Whether the free memory suffices. A mapped file counts in full, although its pages can be
        dropped.
        """
        return self.total <= self.free


@dataclass(frozen=True, slots=True)
class DryRun:
    """A model as it would be loaded."""

    gguf: GGUF
    settled: Settled
    placement_options: PlacementOptions
    devices: tuple[Device, ...]
    batch: int
    residency: Residency
    targets: Targets
    variants: dict[int, Optimized]  # by Residency.variant(), those that were asked for
    optimize: Callable[[int], Optimized]  # the graph of steps of so many tokens
    passes: tuple[tuple[str, int], ...]  # name of each pass, and the number of nodes after it
    measure: Measure
    division: Division | None = None  # of groups of devices
    stages: tuple[str, ...] = ()  # of a pipeline: its devices in order, with as many lanes

    @property
    def arch(self) -> Arch:
        return self.settled.arch

    @property
    def optimized(self) -> Optimized:
        """The graph of short steps."""
        return self.variants[self.residency.variant(1)]

    def predicted(self) -> Prediction | None:
        """Predicted speed; None if a device cannot be measured."""
        with suppress(DeviceError, RequestError, ModelError):
            return self.settled.predicted(self.devices, self.measure)
        return None

    def plan(self, tokens: int) -> Plan:
        """The plan for a step of `tokens` tokens, one of which samples."""
        bucket = Bucket(bucket_of(tokens, self.batch), 1)
        variant = self.residency.variant(bucket.tokens)
        if variant not in self.variants:
            self.variants[variant] = self.optimize(bucket.tokens)
        optimized = self.variants[variant]
        places = dry_places(self.gguf, self.residency, self.targets, optimized)
        return compile(optimized, bucket, places, state_layout(self.optimized))

    def shares(self) -> Iterator[Share]:
        """The share of each device that has a part of the plan."""
        plans = [self.plan(n) for n in sorted({1, min(self.batch, self.arch.cache.context)})]
        needed = [scratch(plan, max(1, len(self.stages))) for plan in plans]
        # Graphs of a group's members have different nodes.
        device = {n: name for own in self.optimized.all for n, name in own.assignment.device.items()}
        read: dict[str, set[str]] = {}
        leaves = {
            s
            for node in device
            for s in node.src
            if s.op == "weight" and Piece.of(s.name).tensor not in self.gguf.tensors
        }
        added = {s.name: nbytes(s.type, Bucket(1, 1)) for s in leaves}
        state: dict[str, dict[str, int]] = {}
        for node, name in device.items():
            read.setdefault(name, set()).update(s.name for s in node.src if s.op == "weight")
            held = {s.name: nbytes(s.type, Bucket(1, 1)) for s in node.src if s.op == "state"}
            state.setdefault(name, {}).update(held)
        for d in (d for whole in self.devices for d in members_of(whole) if d.name in read):
            tokens = state[d.name].pop("tokens", 0)
            packed = of_device(self.targets[d.name].packed, device, d.name)
            own = sum(found.size for found in packed.values())
            plain = read[d.name] - packed.keys()
            pieces = [Piece.of(n) for n in plain]
            weights = own + sum(piece_bytes(self.gguf, p) for p in pieces if p.tensor in self.gguf.tensors)
            weights += sum(size for name, size in added.items() if name in plain)
            compute = tokens + sum(found.get(d.name, 0) for found in needed)
            compute += self.residency.nbytes(d.name) + driver_bytes(d)
            free = free_bytes(d, self.placement_options)
            yield Share(d.name, d.info(), free, weights, own, sum(state[d.name].values()), compute)


def dry_run(
    gguf: GGUF,
    devices: Sequence[Device],
    options: Options = USUAL,
    measure: Measure | None = None,
) -> DryRun:
    """Settles the placement, then builds and optimizes the model's graph. measure: gives a device's speed
    with this model; None: cached or measured now. Raises ModelError if the file is inconsistent.
    """
    measure = measure or measured(gguf, options)
    settled, batch = settle_step(gguf, devices, options, options.placement_options, measure)
    forward = settled.arch.build()
    roots = forward.roots("tokens")
    passes = [("build", len(toposort(roots)))]

    def trace(name: str, after: Roots) -> None:
        passes.append((name, len(toposort(after))))

    residency = settled.residency(gguf, Resident(gguf, options.repack), devices)
    room = cache_room(devices, options.placement_options)
    made = divided_model(devices, forward, residency, settled.placement, options.activations, room)
    contexts = list(made.contexts)

    def optimized_for(tokens: int, trace: Trace | None = None) -> Optimized:
        return made.optimized(roots, [residency.context(c, tokens) for c in contexts], trace)

    optimized = optimized_for(1, trace)
    found = stages(optimized) if residency.variant(batch) == 1 else ()
    if found:
        roots = host_ids(roots)
        passes = [("build", len(toposort(roots)))]
        optimized = optimized_for(1, trace)
    homes = [own.assignment.homes for own in optimized.all]
    contexts = [replace(c, homes=own) for c, own in zip(contexts, homes, strict=True)]
    return DryRun(
        gguf,
        settled,
        options.placement_options,
        tuple(devices),
        batch,
        residency,
        made.targets,
        {residency.variant(1): optimized},
        optimized_for,
        tuple(passes),
        measure,
        made.division,
        found,
    )
