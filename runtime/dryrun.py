"""What loading a model would take, worked out from the file's header: no tensor is read, no memory reserved.

The plans are the real ones, made for the real device, over weights of which only the places are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from satchel.formats.gguf import GGUF
from satchel.runtime.arch import Arch, Cache
from satchel.runtime.compiler import Context, Optimized, compile, optimize
from satchel.runtime.compiler.lower import state_layout
from satchel.runtime.compiler.memory import nbytes
from satchel.runtime.compiler.target import DeviceTarget
from satchel.runtime.device import Device, Info
from satchel.runtime.engine import MAX_TOKENS, bucket_of
from satchel.runtime.graph import Roots, toposort
from satchel.runtime.packing import Packed, file_places, in_place, of_device, own_bytes, packable, packed_by
from satchel.runtime.plan import Bucket, Plan
from satchel.runtime.sizing import size

SCRATCH = frozenset({"arena", "out", "step", "const"})  # buffers that each plan has for itself


@dataclass(frozen=True, slots=True)
class Share:
    """What one device would hold, in bytes.

    weights: those that its steps read, of which `packed` bytes lie in the device's own order, in memory that
    no file stands behind; the rest is the mapped file, or a copy on a device that cannot read that. kv: keys
    and values of all slots. compute: scratch of the plan of a full step and of the one for a single token,
    and the table of tokens.
    """

    device: str
    info: Info
    weights: int
    packed: int
    kv: int
    compute: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.compute

    @property
    def fits(self) -> bool:
        """Whether the free memory holds it; a mapped file counts in full, though its pages can be dropped."""
        return self.total <= self.info.memory_free


@dataclass(frozen=True, slots=True)
class DryRun:
    """A model as it would be loaded. passes: name of each pass and how many nodes the graph has after it."""

    gguf: GGUF
    arch: Arch
    devices: tuple[Device, ...]
    batch: int
    optimized: Optimized
    passes: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]
    packed: Mapping[str, Mapping[str, Packed]]  # weights in a device's own order, by device and name

    def plan(self, tokens: int) -> Plan:
        """The plan of the bucket of a step of so many tokens, of which one row is sampled."""
        weights = {
            d.name: file_places(self.gguf, in_place(self.gguf, d), self.packed[d.name]) for d in self.devices
        }
        bucket = Bucket(bucket_of(tokens, self.batch), 1)
        return compile(self.optimized, bucket, weights, state_layout(self.optimized.roots))

    def shares(self) -> Iterator[Share]:
        """What each device that has a part of the plan would hold."""
        plans = [self.plan(n) for n in sorted({1, min(self.batch, self.arch.cache.context)})]
        device = self.optimized.placement.device
        read: dict[str, set[str]] = {}
        state: dict[str, dict[str, int]] = {}
        for node, name in device.items():
            read.setdefault(name, set()).update(s.name for s in node.src if s.op == "weight")
            held = {s.name: nbytes(s.type, Bucket(1, 1)) for s in node.src if s.op == "state"}
            state.setdefault(name, {}).update(held)
        for d in (d for d in self.devices if d.name in read):
            tokens = state[d.name].pop("tokens", 0)
            packed = self.packed[d.name]
            own = sum(found.size for found in packed.values())
            weights = own + sum(self.gguf.tensors[name].nbytes for name in read[d.name] - packed.keys())
            compute = tokens + sum(scratch(plan).get(d.name, 0) for plan in plans)
            yield Share(d.name, d.info(), weights, own, sum(state[d.name].values()), compute)


def dry_run(
    gguf: GGUF,
    devices: Sequence[Device],
    *,
    context: int = 0,
    slots: int = 1,
    cache_type: str = "f16",
    batch: int = MAX_TOKENS,
    repack: bool = True,
) -> DryRun:
    """Builds and optimizes the model's graph. ModelError where the file does not hold together."""
    free = devices[0].info().memory_free - own_bytes(gguf, devices[0], repack)
    arch, notes = size(gguf, Cache(context, slots, format=cache_type), free)
    forward = arch.build()
    roots, types = forward.roots("tokens"), packable(forward) if repack else {}
    passes = [("build", len(toposort(roots)))]

    def trace(name: str, after: Roots) -> None:
        passes.append((name, len(toposort(after))))

    targets = tuple(DeviceTarget(d, packed_by(d, types)) for d in devices)
    optimized = optimize(roots, Context(targets, lambda label: targets[0].name), trace)
    packed = {t.name: of_device(t.packed, optimized.placement.device, t.name) for t in targets}
    return DryRun(gguf, arch, tuple(devices), batch, optimized, tuple(passes), notes, packed)


def scratch(plan: Plan) -> Mapping[str, int]:
    """Bytes of the buffers that a plan has for itself, by device."""
    found: dict[str, dict[str, int]] = {}
    for segment in plan.segments:
        mine = {b.name: b.size for b in segment.buffers if b.name in SCRATCH}
        found.setdefault(segment.device, {}).update(mine)
    return {device: sum(sizes.values()) for device, sizes in found.items()}
