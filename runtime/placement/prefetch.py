"""Decides which weights on the CPU another device prefetches for long steps, and from how many tokens on:
from where sending them and computing there is faster than the CPU. Of a mixture's experts the CPU keeps those
that it computes while the others are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from satchel.runtime.placement.choose import MemoryBudget
from satchel.runtime.placement.options import AUTO, OFF, PlacementOptions
from satchel.runtime.placement.placement import Placement
from satchel.runtime.placement.predict import HANDOVER, LONG, PROMPT, Prediction, Speed, means, predict
from satchel.runtime.placement.sizes import Sizes, Tensor
from satchel.runtime.weights.prefetch import SLOTS, HostShare, PrefetchPlan

LEAST = 32  # smallest step with prefetched weights, if requested without a measurement
ATTENTION = 0.1  # attention's share of a CPU layer, if it stays on the CPU
LEFT = 2 << 30  # bytes of free memory that locked pages leave to the host
SHARES = tuple(i / 16 for i in range(13))  # of a layer's experts, what the CPU may keep
WORTH = 0.97  # of the time without, what a step may take at most with experts that the CPU keeps
# Bytes per second of the CPU's values of tokens' experts: it writes and reads those of all, zeros for experts
# that it does not keep. Measured in docs/placement.md.
VALUES = 2.5e10

Layers = Mapping[str, Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class Prefetching:
    """What a prefetch is decided from.

    budgets: free memory without what is reserved.
    can_pin: devices copy from locked pages of the file.
    batch: most tokens of a step.
    """

    sizes: Sizes
    budgets: Sequence[MemoryBudget]
    options: PlacementOptions
    can_pin: bool = False
    batch: int = PROMPT

    def candidate(self, placement: Placement) -> PrefetchPlan | None:
        """The plan without its smallest step; None if no layer is to be prefetched, or there is no room."""
        sizes = self.sizes
        far = next((r for r in self.budgets if r.apart and r.name in sizes.used(placement)), None)
        if self.options.prefetch == OFF or far is None or far.name == placement.first:
            return None
        layers = prefetch_layers(placement, sizes, far.name)
        room = far.free + reserved(sizes, self.options, far.name) - sizes.on(placement)[far.name]
        travelling = travelling_states(placement, layers, sizes)
        following = resident_layers(placement, layers, sizes, far.name)
        for states, residents in product((travelling, {}), ({}, following)) if layers else ():
            sent = {**layers, **residents}
            bytes = {label: _held(sizes, far.name, own) for label, own in sent.items()}
            slots = slots_bytes({label: _parts(sizes, far.name, own) for label, own in sent.items()}, states)
            more = slots - sum(bytes[label] for label in residents)
            if more <= room:
                break
        else:
            return None
        names = {label: tuple(t.name for t in own) for label, own in sent.items()}
        where, total = prefetch_where(placement, layers, far.name), sum(bytes.values())
        pinned = self.can_pin and self._has_memory(placement, total)
        experts = frozenset(t.name for own in sent.values() for t in own if t.expert)
        return PrefetchPlan(
            far.name, names, LEAST, where, more, total, states, pinned, tuple(residents), experts
        )

    def _has_memory(self, placement: Placement, more: int) -> bool:
        """Whether the host has so many bytes more than its weights and states need."""
        host = next((budget for budget in self.budgets if not budget.apart), None)
        return host is not None and self.sizes.on(placement)[host.name] + more + LEFT <= host.free

    def plan(self, placement: Placement, speeds: Mapping[str, Speed] | None) -> PrefetchPlan | None:
        """The plan; None where nothing is to be prefetched. speeds: measured, or None."""
        found = None if self.options.prefetch == AUTO and speeds is None else self.candidate(placement)
        if found is None or self.options.prefetch != AUTO or speeds is None:
            return found
        least = min_prefetch_tokens(placement, self.sizes, found, speeds, self.batch)
        if least is None:
            return None
        shares = tuple(self._host_shares(placement, found, speeds, least))
        return replace(found, min_tokens=least, host_shares=shares)

    def _host_shares(
        self, placement: Placement, plan: PrefetchPlan, speeds: Mapping[str, Speed], least: int
    ) -> Iterator[HostShare]:
        """The CPU's share of the experts in steps of so many tokens and more, where it has one."""
        before, n = 0.0, least
        while n <= self.batch:
            share = prefetch_seconds(placement, self.sizes, plan, speeds, n).share
            if share != before:
                yield HostShare(n, share)
            before, n = share, 2 * n

    def predicted(self, placement: Placement, speeds: Mapping[str, Speed]) -> Prediction:
        """The prediction for a placement, with its prompts prefetched where that is faster."""
        found, plan = predict(placement, self.sizes, speeds), self.candidate(placement)
        return (
            found if plan is None else with_prefetched(found, placement, self.sizes, plan, speeds, self.batch)
        )


def with_prefetched(
    found: Prediction,
    placement: Placement,
    sizes: Sizes,
    plan: PrefetchPlan,
    speeds: Mapping[str, Speed],
    batch: int,
) -> Prediction:
    """A prediction without prefetched weights, with prompts that have them where that is faster. batch: most
    tokens of a step.
    """
    steps = max(1, LONG // batch)
    prompt, long = found.prompt, found.long
    own, prefetched, _ = prefetch_seconds(placement, sizes, plan, speeds, PROMPT)
    if plan.gain * prefetched < own:
        prompt = max(prefetched, prompt - own + prefetched)
    own, prefetched, _ = prefetch_seconds(placement, sizes, plan, speeds, LONG // steps)
    if plan.gain * prefetched < own:
        long = max(steps * prefetched, long - steps * (own - prefetched))
    return replace(found, prompt=prompt, whole=long)


def reserved(sizes: Sizes, options: PlacementOptions, device: str) -> int:
    """Bytes of a device to reserve for prefetched weights, if the options request them."""
    if options.prefetch in (AUTO, OFF):
        return 0
    placement = Placement("", {}, {})
    layers = prefetch_layers(placement, sizes, device)
    states = travelling_states(placement, layers, sizes) if options.kv else {}
    each = (
        _held(sizes, device, tensors) + sum(states.get(label, {}).values())
        for label, tensors in layers.items()
    )
    return SLOTS * max(each, default=0)


def prefetch_layers(placement: Placement, sizes: Sizes, device: str) -> dict[str, list[Tensor]]:
    """By layer, the tensors on the first device that `device` prefetches: of the first device's layers all
    but those that a rule has placed, and experts of both. What layers of its own read as well, the device
    has: that would be sent with each layer, to the buffer of one.
    """
    labels = (f"blk.{i}" for i in range(sizes.layers))
    homes = placement.first, device
    found: dict[str, dict[str, Tensor]] = {label: {} for label in labels if placement.label(label) in homes}
    there = {t.name for t in sizes.tensors if placement.weight(t.name, t.label) == device}
    for t in sizes.tensors:
        if t.label in found and t.name not in there and _stays(placement, t):
            found[t.label][t.name] = t
    return {
        label: list(tensors.values())
        for label, tensors in found.items()
        if any(t.macs for t in tensors.values())
    }


def resident_layers(
    placement: Placement, layers: Layers, sizes: Sizes, device: str
) -> dict[str, list[Tensor]]:
    """The device's own layers that can lie in the buffers between long steps: those behind the prefetched
    ones, as many as there are buffers, and tensors of theirs of the same kind that no other layer reads.
    """
    found: dict[str, list[Tensor]] = {}
    if not layers:
        return found
    last = list(layers)[-1]
    whole = placement.label(last) == placement.first
    after = int(last.removeprefix("blk.")) + 1
    for label in (f"blk.{i}" for i in range(after, min(after + SLOTS, sizes.layers))):
        own = {
            t.name: t
            for t in sizes.tensors
            if t.label == label
            and t.name.startswith(f"{label}.")
            and placement.weight(t.name, label) == device
            and (whole or t.expert)
        }
        if placement.label(label) != device or not any(t.macs for t in own.values()):
            break
        found[label] = list(own.values())
    return found


def travelling_states(placement: Placement, layers: Layers, sizes: Sizes) -> dict[str, dict[str, int]]:
    """By layer, the keys and values that can travel with its weights, and their bytes: those of layers that
    have no other state, where none was placed by the options.
    """
    found: dict[str, dict[str, int]] = {}
    for name, (label, size) in sizes.states.items():
        if label in layers and placement.label(label) == placement.first:
            found.setdefault(label, {})[name] = size
    return {
        label: own
        for label, own in found.items()
        if own.keys() <= sizes.positions.keys() - placement.states.keys()
    }


def slots_bytes(weights: Mapping[str, tuple[int, int]], states: Mapping[str, Mapping[str, int]]) -> int:
    """Bytes of the buffers for these layers. weights: by layer, in order, bytes of its experts and of its
    other weights.
    """
    experts = [own for own, _ in weights.values()]
    rest = [other + sum(states.get(label, {}).values()) for label, (_, other) in weights.items()]
    return sum(max(experts[i::SLOTS]) + max(rest[i::SLOTS]) for i in range(min(SLOTS, len(weights))))


def _stays(placement: Placement, t: Tensor) -> bool:
    """Whether a tensor of a layer is on the first device and may be computed with elsewhere."""
    there = placement.weight(t.name, t.label) == placement.first
    return there and (t.expert or t.name not in placement.weights)


def prefetch_where(placement: Placement, layers: Layers, device: str) -> Placement:
    """The placement of a step with these weights prefetched by the device."""
    sent = {t.name for tensors in layers.values() for t in tensors}
    weights = {name: home for name, home in placement.weights.items() if name not in sent}
    return replace(placement, labels={**placement.labels, **dict.fromkeys(layers, device)}, weights=weights)


def min_prefetch_tokens(
    placement: Placement, sizes: Sizes, plan: PrefetchPlan, speeds: Mapping[str, Speed], batch: int
) -> int | None:
    """The smallest step, a power of two up to `batch` tokens, in which prefetched weights are faster; None if
    there is none.
    """
    n = LEAST
    while n <= batch:
        own, prefetched, _ = prefetch_seconds(placement, sizes, plan, speeds, n)
        if plan.gain * prefetched < own:
            return n
        n *= 2
    return None


class PrefetchSeconds(NamedTuple):
    """Predicted seconds of a plan's weights in a step."""

    own: float  # where they are
    prefetched: float
    share: float  # of the experts, what the CPU keeps of each layer


@dataclass(frozen=True, slots=True)
class _LayerSeconds:
    """Predicted seconds of a layer's weights in a step."""

    sending: float
    there: float  # the device computes with them
    here: float  # the CPU does
    sending_experts: float = 0.0  # to send its experts alone
    here_experts: float = 0.0  # the CPU computes with these
    before: float = 0.0  # from the layer's begin until the CPU can compute with experts, and back

    def prefetched(self, share: float, pinned: bool) -> float:
        """With this share of the experts left to the CPU. From locked pages weights are sent while the device
        computes, and the CPU; otherwise the host copies them first.
        """
        sending = self.sending - share * self.sending_experts
        both = self.there + (self.before + share * self.here_experts if share else 0.0)
        return max(sending, both) if pinned else sending + both


def prefetch_seconds(
    placement: Placement, sizes: Sizes, plan: PrefetchPlan, speeds: Mapping[str, Speed], n: int
) -> PrefetchSeconds:
    """Predicted seconds of a step of n tokens. The step is the first of its prompts: no keys and values are
    sent. Only from locked pages has the CPU a share of the experts: otherwise it copies meanwhile.
    """
    layers = [*_layer_seconds(placement, sizes, plan, speeds, n)]
    shares = SHARES if plan.pinned else (0.0,)
    found = {x: sum(layer.prefetched(x, plan.pinned) for layer in layers) for x in shares}
    best = min(shares, key=lambda share: found[share])
    share = best if found[best] < WORTH * found[0.0] else 0.0
    return PrefetchSeconds(sum(layer.here for layer in layers), found[share], share)


def _layer_seconds(
    placement: Placement, sizes: Sizes, plan: PrefetchPlan, speeds: Mapping[str, Speed], n: int
) -> Iterator[_LayerSeconds]:
    here, there = speeds[placement.first], speeds[plan.device]
    link = there.direct if plan.pinned and there.direct else there.link
    locked = max(there.link, there.direct)  # what crosses lies in locked pages where there are any
    mean_read, mean_macs = means(sizes)
    names = {(label, name) for label, tensors in plan.layers.items() for name in tensors}
    layers: dict[str, list[Tensor]] = {label: [] for label in plan.layers}
    others: dict[str, list[Tensor]] = {label: [] for label in plan.layers}
    for t in (t for t in sizes.tensors if t.label in layers):
        (layers if (t.label, t.name) in names else others)[t.label].append(t)

    def at_both(tensors: Sequence[Tensor]) -> tuple[float, float]:
        """Seconds of the device's products with these tensors, and of the CPU's."""
        macs = sum(t.macs for t in tensors) / mean_macs * n / PROMPT
        read = sum(min(n * t.read, sizes.held[placement.first][t.name]) for t in tensors) / mean_read
        return there.layer[1] * macs, max(here.layer[1] * macs, here.layer[0] * read)

    for label, tensors in layers.items():
        (computing, mine), sending = at_both(tensors), _held(sizes, plan.device, tensors) / link
        if label in plan.residents:
            yield _LayerSeconds(sending, computing, computing)
            continue
        experts = [t for t in tensors if t.expert]
        found = _LayerSeconds(sending, computing, mine)
        if label in plan.states:
            back = n * sum(sizes.positions[name] for name in plan.states[label])
            computing += back / locked + there.latency + there.start
        elif placement.label(label) == placement.first:
            crossing = 2 * (here.latency + there.latency) + n * _crossing(sizes) / locked
            computing += crossing + 2 * there.start + ATTENTION * mine
        found = replace(found, there=computing)
        if experts:
            values = 4 * HANDOVER + 2 * (there.latency + n * 4 * sizes.width / locked)
            values += n * sum(map(_values, experts)) / VALUES
            found = replace(
                found,
                sending_experts=_held(sizes, plan.device, experts) / link,
                here_experts=at_both(experts)[1],
                before=at_both(others[label])[0] + there.start + values + here.start,
            )
        yield found


def _values(t: Tensor) -> float:
    """Bytes of a token's products with the experts of a stack (E, N, K)."""
    return 4 * t.macs / columns if isinstance(columns := t.type.shape[-1], int) else 0.0


def _crossing(sizes: Sizes) -> int:
    """Bytes per token that cross for a layer of the CPU whose attention stays there: queries, keys and values
    to the CPU, the attention's result back.
    """
    return 4 * 4 * sizes.width


def _parts(sizes: Sizes, device: str, tensors: Sequence[Tensor]) -> tuple[int, int]:
    """Bytes of the experts among these, and of the others."""
    experts = _held(sizes, device, [t for t in tensors if t.expert])
    return experts, _held(sizes, device, tensors) - experts


def _held(sizes: Sizes, device: str, tensors: Sequence[Tensor]) -> int:
    return sum(sizes.held[device][t.name] + 64 for t in tensors)
