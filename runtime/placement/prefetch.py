"""Whether another device prefetches the weights of the CPU's layers for steps of many tokens, and from how
many tokens on: where sending a layer's weights and computing there is quicker than the CPU's products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from satchel.runtime.placement.choose import MemoryBudget
from satchel.runtime.placement.options import AUTO, OFF, PlacementOptions
from satchel.runtime.placement.placement import Placement
from satchel.runtime.placement.predict import PROMPT, Speed
from satchel.runtime.placement.sizes import Sizes, Tensor
from satchel.runtime.weights.prefetch import SLOTS, PrefetchPlan

LEAST = 32  # tokens from which on weights are prefetched where that is wanted without a measurement
GAIN = 2.0  # how much quicker it must be foretold to be
ATTENTION = 0.1  # of a CPU's layer, which stays there


def prefetch_of(
    placement: Placement,
    sizes: Sizes,
    budgets: Sequence[MemoryBudget],
    options: PlacementOptions,
    speeds: Mapping[str, Speed] | None,
    batch: int,
) -> PrefetchPlan | None:
    """speeds: as measured, None where nothing was. budgets: less what is reserved. None where no layer is
    to be prefetched, or there is no room.
    """
    far = next((r for r in budgets if r.apart and r.name in sizes.used(placement)), None)
    if options.prefetch == OFF or far is None or (options.prefetch == AUTO and speeds is None):
        return None
    layers = prefetch_layers(placement, sizes)
    bytes = {label: _held(sizes, far.name, tensors) for label, tensors in layers.items()}
    room = far.free + reserved(sizes, options, far.name)
    if not layers or sizes.on(placement)[far.name] + SLOTS * max(bytes.values()) > room:
        return None
    most = max(bytes.values())
    least = (
        LEAST
        if options.prefetch != AUTO or speeds is None
        else min_prefetch_tokens(placement, sizes, far.name, speeds, most, batch)
    )
    if least is None:
        return None
    names = {label: tuple(t.name for t in tensors) for label, tensors in layers.items()}
    slots = [max(list(bytes.values())[i::SLOTS]) for i in range(min(SLOTS, len(bytes)))]
    return PrefetchPlan(
        far.name, names, least, prefetch_where(placement, sizes, layers, far.name), sum(slots)
    )


def reserved(sizes: Sizes, options: PlacementOptions, device: str) -> int:
    """Bytes of a device that are kept for prefetched weights where these are asked for."""
    if options.prefetch in (AUTO, OFF):
        return 0
    layers = prefetch_layers(Placement("", {}, {}), sizes).values()
    return SLOTS * max((_held(sizes, device, tensors) for tensors in layers), default=0)


def prefetch_layers(placement: Placement, sizes: Sizes) -> dict[str, list[Tensor]]:
    """Tensors of the layers that are with the first device; experts and what a rule has placed stay there."""
    found: dict[str, list[Tensor]] = {}
    for i in range(sizes.layers):
        label = f"blk.{i}"
        if placement.label(label) == placement.first:
            mine = [
                t
                for t in sizes.tensors
                if t.label == label and not t.expert and t.name not in placement.weights
            ]
            if any(t.macs for t in mine):
                found[label] = list({t.name: t for t in mine}.values())
    return found


def prefetch_where(
    placement: Placement, sizes: Sizes, layers: Mapping[str, Sequence[Tensor]], device: str
) -> Placement:
    experts = {t.name: placement.first for t in sizes.tensors if t.expert and t.label in layers}
    return replace(
        placement,
        labels={**placement.labels, **dict.fromkeys(layers, device)},
        weights={**experts, **placement.weights},
    )


def min_prefetch_tokens(
    placement: Placement, sizes: Sizes, device: str, speeds: Mapping[str, Speed], most: int, batch: int
) -> int | None:
    """The smallest step of a power of two in tokens, up to `batch`, in which a prefetched layer is done
    sooner.
    """
    here, there, width = speeds[placement.first], speeds[device], _crossing(sizes)
    n = LEAST
    while n <= batch:
        own = here.layer[1] * n / PROMPT
        crossing = 2 * (here.latency + there.latency) + n * width / there.link
        prefetched = (
            most / there.link + crossing + there.layer[1] * n / PROMPT + 2 * there.start + ATTENTION * own
        )
        if GAIN * prefetched < own:
            return n
        n *= 2
    return None


def _crossing(sizes: Sizes) -> int:
    """Bytes of a token that cross for such a layer: queries, keys and values one way, their sum back."""
    return 4 * 4 * sizes.width


def _held(sizes: Sizes, device: str, tensors: Sequence[Tensor]) -> int:
    return sum(sizes.held[device][t.name] + 64 for t in tensors)
