"""Settles a model's architecture, context and placement from its header and the devices. `satchel plan` and a
load both use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from satchel.formats.gguf import GGUF
from satchel.runtime.api.options import Options
from satchel.runtime.compiler import compile
from satchel.runtime.compiler.lower import state_layout
from satchel.runtime.compiler.optimized import Optimized
from satchel.runtime.compiler.stages import stages
from satchel.runtime.device.device import Device
from satchel.runtime.device.group import GroupDevice, members_of
from satchel.runtime.engine.engine import bucket_of
from satchel.runtime.engine.lanes import LaneProgram
from satchel.runtime.engine.sharded import divided_model
from satchel.runtime.layers.arch import Arch, Forward
from satchel.runtime.placement.choose import MemoryBudget, PlacementCandidate, choose, fits, ruled
from satchel.runtime.placement.devices import apart, cache_room, driver_bytes, free_bytes
from satchel.runtime.placement.expert_cache import expert_cache_of, reserved_bytes, with_expert_cache
from satchel.runtime.placement.options import AUTO, OFF, PlacementOptions, read_kv_budget
from satchel.runtime.placement.placement import Placement
from satchel.runtime.placement.predict import Prediction, Speed, predict
from satchel.runtime.placement.prefetch import Prefetching, reserved, with_prefetched
from satchel.runtime.placement.sizes import Sizes, sizes_of
from satchel.runtime.placement.sizing import cache_bytes, cache_of, size
from satchel.runtime.plan import Bucket, Plan
from satchel.runtime.weights.expert_cache.cache import ExpertCache
from satchel.runtime.weights.expert_cache.layout import ExpertCacheLayout
from satchel.runtime.weights.packing import Places, file_places, in_place, of_device, own_bytes
from satchel.runtime.weights.prefetch import PrefetchPlan, WeightPrefetcher
from satchel.runtime.weights.residency import Residency, Targets
from satchel.runtime.weights.resident import Resident
from satchel.runtime.weights.sharded import has_pieces, piece_places
from satchel.runtime.weights.streamed import Streamed

TRIES = 4
ROOMY = 1.5  # bytes free on a group, over those of weights and cache, from which on the rest is not counted
SCRATCH = frozenset({"arena", "out", "step", "const", "link"})  # buffers that plans do not share
Measure = Callable[[Device], Speed]


@dataclass(frozen=True, slots=True)
class Settled:
    """The settled decisions of a load."""

    arch: Arch
    candidate: PlacementCandidate  # the chosen placement
    streamed: bool = False  # the CPU reads its weights from the file on demand, unpacked
    notes: tuple[str, ...] = ()  # for the user
    prefetch: PrefetchPlan | None = None  # weights that another device prefetches for long steps
    expert_cache: ExpertCacheLayout | None = None  # the CPU's experts that another device caches

    @property
    def placement(self) -> Placement:
        """The device of each node, with those of cached experts."""
        return with_expert_cache(self.candidate.placement, self.expert_cache)

    def residency(self, gguf: GGUF, resident: Residency, devices: Sequence[Device]) -> Residency:
        """How the weights of the file reach these devices, over `resident` weights."""
        if self.streamed:
            resident = Streamed(resident, gguf, [d.name for d in devices if not apart(d)])
        if self.expert_cache is not None:
            resident = ExpertCache(resident, gguf, self.expert_cache)
        return resident if self.prefetch is None else WeightPrefetcher(resident, gguf, self.prefetch)

    def predicted(self, devices: Sequence[Device], measure: Measure) -> Prediction:
        """Predicted times of a step, from the measured speeds of the devices in use."""
        sizes = sizes_of(self.arch.build(), self.arch.layers, devices)
        used = sizes.used(self.placement)
        speeds = {d.name: measure(d) for d in devices if d.name in used}
        found = predict(self.placement, sizes, speeds, self.expert_cache)
        if self.prefetch is None:
            return found
        return with_prefetched(
            found, self.candidate.placement, sizes, self.prefetch, speeds, self.arch.cache.batch
        )


@dataclass(frozen=True, slots=True)
class DryPlans:
    """A model's plans under any placement on these devices, before its weights are loaded."""

    gguf: GGUF
    forward: Forward
    devices: Sequence[Device]
    options: Options
    wanted: PlacementOptions
    context: int

    def optimized(
        self, placement: Placement, cached: ExpertCacheLayout | None
    ) -> tuple[Residency, Targets, Optimized]:
        """The weights, the devices as the compiler sees them, and the graph of a step."""
        residency: Residency = Resident(self.gguf, self.options.repack)
        residency = residency if cached is None else ExpertCache(residency, self.gguf, cached)
        return residency, *self._made(residency, with_expert_cache(placement, cached), 1)

    def _made(self, residency: Residency, home: Placement, tokens: int) -> tuple[Targets, Optimized]:
        """The devices as the compiler sees them, and the graph of a step of so many tokens."""
        room, bits = cache_room(self.devices, self.wanted), self.options.activations
        made = divided_model(self.devices, self.forward, residency, home, bits, room, ("tokens",))
        contexts = [residency.context(context, tokens) for context in made.contexts]
        return made.targets, made.optimized(self.forward.roots("tokens"), contexts)

    def able(self, placement: Placement, cached: ExpertCacheLayout) -> bool:
        """Whether each node can run on the device of its placement."""
        *_, optimized = self.optimized(placement, cached)
        return _as_wanted(optimized, cached.weights)

    def able_to_share(self, placement: Placement, plan: PrefetchPlan) -> bool:
        """Whether both devices can compute with the experts of a step of which the CPU keeps some."""
        prefetcher = WeightPrefetcher(Resident(self.gguf, self.options.repack), self.gguf, plan)
        tokens = plan.host_shares[0].tokens
        _, optimized = self._made(prefetcher, placement, tokens)
        return _as_wanted(optimized, prefetcher.homes_of_experts(tokens))

    def scratch(self, placement: Placement, cached: ExpertCacheLayout | None = None) -> dict[str, int]:
        """Bytes of scratch memory on each device: buffers of the plans for a full step and for one token, and
        the driver's. Of a group, as many times the most of a member.
        """
        residency, targets, optimized = self.optimized(placement, cached)
        places = dry_places(self.gguf, residency, targets, optimized)
        found = {d.name: driver_bytes(d) for d in self.devices}
        lanes = max(1, len(stages(optimized)))
        for n in {1, min(self.options.batch, self.context)}:
            bucket = Bucket(bucket_of(n, self.options.batch), 1)
            plan = compile(optimized, bucket, places, state_layout(optimized))
            taken = scratch(plan, lanes)
            for device in self.devices:
                members = members_of(device)
                found[device.name] += len(members) * max(taken.get(d.name, 0) for d in members)
        return found


def settle(
    gguf: GGUF, devices: Sequence[Device], options: Options, wanted: PlacementOptions, measure: Measure
) -> Settled:
    """Settles everything for this load. measure: gives a device's speed with this model; called only if there
    is a choice.

    Raises DeviceError if the options demand more memory than a device has.
    """
    if any(isinstance(d, GroupDevice) for d in devices):  # no weight goes to its members while steps run
        wanted = replace(wanted, prefetch=OFF, expert_cache=OFF)
    free = {d.name: free_bytes(d, wanted) for d in devices}
    first, whole = devices[0], own_bytes(gguf, devices[0], options.repack)
    budget = read_kv_budget(options.kv_budget)
    arch, said = size(gguf, cache_of(options), sum(free.values()) - whole, budget)
    held = whole + cache_bytes(arch, arch.cache)
    alone = len(devices) == 1 or _roomy(first, free[first.name], held, wanted)
    if alone and not wanted.rules:
        short = held > free[first.name] and not apart(first)
        return _settled(
            arch, PlacementCandidate(Placement(first.name), 0, True, True), wanted, short, list(said)
        )
    forward = arch.build()
    sizes = sizes_of(forward, arch.layers, devices, options.repack)
    plans = DryPlans(gguf, forward, devices, options, wanted, arch.cache.context)
    needed = plans.scratch(Placement(first.name))
    held = sizes.on(Placement(first.name))[first.name] + needed.get(first.name, 0)
    whole_fits = (wanted.named or (not wanted.devices and _one_kind(devices))) and held <= free[first.name]
    speeds = None if whole_fits else _speeds(devices, wanted, measure)
    why = "there is no room for more" if speeds is None else "so it is done first"
    chosen = _choose(plans, sizes, free, needed, speeds)
    candidate, prefetching = chosen.candidate, chosen.prefetching
    if speeds is None and _may_help(sizes, wanted, devices):
        speeds = {d.name: measure(d) for d in devices}
    short = not fits(sizes.on(candidate.placement), prefetching.budgets, host=True)
    settled = _settled(arch, candidate, wanted, short, [*said, *_left(candidate, sizes, wanted, why)])
    plan = None if settled.streamed else prefetching.plan(candidate.placement, speeds)
    if plan is not None and plan.host_shares and not plans.able_to_share(candidate.placement, plan):
        plan = replace(plan, host_shares=())
    spare = chosen.for_experts
    if plan is not None:
        spare = {**spare, plan.device: spare[plan.device] - plan.nbytes}
    settled = _with_expert_cache(
        settled, plans, sizes, prefetching.budgets, wanted, speeds, spare, chosen.scratch
    )
    return settled if plan is None else _with_prefetch(settled, plan)


def _as_wanted(optimized: Optimized, wanted: Mapping[str, str]) -> bool:
    """Whether each node stands on the wanted devices of its weights."""
    return all(
        wanted.get(s.name, device) == device
        for node, device in optimized.assignment.device.items()
        for s in node.src
        if s.op == "weight"
    )


class _Choice(NamedTuple):
    """What was chosen. for_experts: bytes of each device that are reserved for an expert cache. scratch:
    bytes of steps that are counted already.
    """

    candidate: PlacementCandidate
    prefetching: Prefetching
    for_experts: Mapping[str, int]
    scratch: Mapping[str, int]


def _choose(
    plans: DryPlans,
    sizes: Sizes,
    free: Mapping[str, int],
    needed: Mapping[str, int],
    speeds: Mapping[str, Speed] | None,
) -> _Choice:
    """The fastest placement, or the one with the most on devices apart where no speeds are known. needed:
    bytes of a step's scratch memory.
    """
    devices, wanted = plans.devices, plans.wanted
    for_experts = {d.name: reserved_bytes(sizes, wanted, d.name) for d in devices if apart(d)}
    kept = {name: reserved(sizes, wanted, name) + size for name, size in for_experts.items()}
    can_pin = all(d.can_pin for d in devices if apart(d))
    for _ in range(TRIES):
        taken = {d.name: needed.get(d.name, 0) + kept.get(d.name, 0) for d in devices}
        budgets = tuple(MemoryBudget(d.name, free[d.name] - taken[d.name], apart(d)) for d in devices)
        prefetching = Prefetching(sizes, budgets, wanted, can_pin, plans.options.batch)
        judge = None if speeds is None else partial(prefetching.predicted, speeds=speeds)
        candidate = choose(sizes, budgets, wanted, judge)
        found = plans.scratch(candidate.placement)
        if all(size <= needed.get(name, 0) for name, size in found.items()):
            break
        # A step's scratch memory depends on the placement: choose again with that much less memory.
        needed = {d.name: max(found.get(d.name, 0), needed.get(d.name, 0)) for d in devices}
    return _Choice(candidate, prefetching, for_experts, needed)


def _with_prefetch(settled: Settled, plan: PrefetchPlan) -> Settled:
    """The same with weights that are prefetched for long steps."""
    mine = len(plan.residents)
    layers = f"the weights of {len(plan.layers) - mine} layers"
    steps = f"steps of {plan.min_tokens} tokens and more"
    how = ", from locked pages of the file" if plan.pinned else ""
    how += f", through the memory of {mine} of its own" if mine else ""
    if plan.host_shares:
        most = max(share for _, share in plan.host_shares)
        how += f"; {settled.placement.first} keeps up to {most:.0%} of their experts"
    note = f"{plan.device} prefetches {layers} for {steps}{how}"
    if settled.expert_cache is not None:
        others = settled.expert_cache.without(plan.layers)
        plan = replace(plan, placement=with_expert_cache(plan.placement, others))
    return replace(settled, prefetch=plan, notes=(*settled.notes, note))


def _roomy(device: Device, free: int, held: int, wanted: PlacementOptions) -> bool:
    """Whether a group, which is to have all that it has room for, has much more than is held. Nothing is
    compiled for it then: to divide a model for a trial takes as long as for its load.
    """
    chosen = wanted.layers not in (None, -1) or wanted.split or not wanted.kv
    given = wanted.named or not wanted.devices
    roomy = ROOMY * held <= free - driver_bytes(device)
    return isinstance(device, GroupDevice) and given and not chosen and roomy


def _with_expert_cache(
    settled: Settled,
    plans: DryPlans,
    sizes: Sizes,
    budgets: Sequence[MemoryBudget],
    wanted: PlacementOptions,
    speeds: Mapping[str, Speed] | None,
    spare: Mapping[str, int],
    counted: Mapping[str, int],
) -> Settled:
    """The same with the experts that fit the expert cache.

    spare: bytes of each device that were reserved for it; negative if something else takes them.
    counted: scratch bytes that are counted already.
    """
    if settled.streamed:
        return settled
    placement = settled.candidate.placement
    fitting = partial(expert_cache_of, placement, sizes, budgets, wanted, speeds)
    found = fitting(spare)
    if found is not None and not plans.able(placement, found):
        lacks = "the expert cache is off: a device lacks what it needs"
        return replace(settled, notes=(*settled.notes, lacks))
    if found is not None:  # its part of a step needs room too
        more = plans.scratch(placement, found)
        found = fitting({n: kept - max(0, more.get(n, 0) - counted.get(n, 0)) for n, kept in spare.items()})
    if found is None:
        return settled
    first = next(iter(found.layers.values()))
    few = f"{first.count} of {first.experts} experts of {len(found.layers)} layers"
    held = f"{few} are cached by {first.device}: those that are used most"
    return replace(settled, expert_cache=found, notes=(*settled.notes, held))


def _settled(
    arch: Arch,
    candidate: PlacementCandidate,
    wanted: PlacementOptions,
    short: bool,
    notes: list[str],
) -> Settled:
    """short: the CPU's part exceeds its free memory."""
    streamed = wanted.stream == "on" or (wanted.stream == "auto" and short)
    if streamed and short:
        notes.append(
            "the CPU's weights are more than its free memory: they are read from the file as it goes"
        )
    return Settled(arch, candidate, streamed, tuple(notes))


def _speeds(
    devices: Sequence[Device], wanted: PlacementOptions, measure: Measure
) -> Mapping[str, Speed] | None:
    """Measured speeds; None if the options leave no choice: a single named device takes as much as fits, or
    the options give the number of layers or their shares.
    """
    alone = wanted.named and sum(map(apart, devices)) < 2
    if alone or wanted.layers is not None or wanted.split:
        return None
    return {d.name: measure(d) for d in devices}


def _may_help(sizes: Sizes, wanted: PlacementOptions, devices: Sequence[Device]) -> bool:
    """Whether rules leave experts on the CPU with which another device may compute, if speeds say so."""
    undecided = wanted.prefetch == AUTO or wanted.expert_cache == AUTO
    host = next((d.name for d in devices if not apart(d)), "")
    left = ruled(wanted.rules, sizes)
    return undecided and bool(host) and any(t.expert and left.get(t.name) == host for t in sizes.tensors)


def _one_kind(devices: Sequence[Device]) -> bool:
    """Whether the devices apart are equally fast, so that the first may take everything."""
    return len({(d.backend.name, d.info().name, d.info().variant) for d in devices if apart(d)}) < 2


def _left(candidate: PlacementCandidate, sizes: Sizes, wanted: PlacementOptions, why: str) -> list[str]:
    """Notes on parts that the automatic choice leaves on the CPU."""
    here = candidate.placement.first
    if wanted.layers is not None or wanted.split:
        return []
    parts = []
    if candidate.on < sizes.layers:
        parts.append(f"{sizes.layers - candidate.on} of {sizes.layers} layers")
    if not candidate.head:
        parts.append("the head")
    if candidate.experts:
        parts.append(f"the experts of {candidate.experts} layers")
    return (
        [f"{' and '.join(parts)} {'is' if parts == ['the head'] else 'are'} on {here}: {why}"]
        if parts
        else []
    )


def dry_places(gguf: GGUF, residency: Residency, targets: Targets, optimized: Optimized) -> dict[str, Places]:
    """Where the weights of each device will lie."""
    found = {}
    device = {node: name for own in optimized.all for node, name in own.assignment.device.items()}
    for name, target in targets.items():
        packed = of_device(target.packed, device, name)
        found[name] = (
            piece_places(gguf, packed)
            if has_pieces(gguf, packed)
            else file_places(gguf, in_place(gguf, target.device), packed)
        )
        residency.add_places(name, packed, found[name])
    return found


def scratch(plan: Plan, lanes: int = 1) -> Mapping[str, int]:
    """Bytes of the buffers that a plan does not share, by device. Each of the lanes has its own outputs, and
    what crosses devices.
    """
    found: dict[str, dict[str, int]] = {}
    for segment in (own for whole in plan.segments for own in whole.all):
        mine = {
            b.name: b.size * (lanes if b.usage in LaneProgram.apart else 1)
            for b in segment.buffers
            if b.name in SCRATCH
        }
        found.setdefault(segment.device, {}).update(mine)
    return {device: sum(sizes.values()) for device, sizes in found.items()}
