"""Decides how many experts of each layer a GPU caches: the requested number, or as many as fit if the
measured speeds show a gain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from satchel.errors import DeviceError
from satchel.runtime.placement.choose import MemoryBudget, ruled
from satchel.runtime.placement.options import PlacementOptions, read_expert_cache
from satchel.runtime.placement.placement import Placement
from satchel.runtime.placement.predict import HANDOVER, Speed
from satchel.runtime.placement.sizes import Sizes, Tensor
from satchel.runtime.weights.expert_cache.layout import CachedLayer, ExpertCacheLayout

MIB = 1 << 20


def expert_cache_of(
    placement: Placement,
    sizes: Sizes,
    budgets: Sequence[MemoryBudget],
    options: PlacementOptions,
    speeds: Mapping[str, Speed] | None,
    spare: Mapping[str, int],
) -> ExpertCacheLayout | None:
    """The layout of the expert cache; None if there is nothing to cache.

    speeds: measured, or None.
    budgets: free memory without what is reserved.
    spare: bytes to add to each device's budget; negative if something else takes them.

    Raises DeviceError if the options demand more than there is memory for.
    """
    _, count, size = read_expert_cache(options.expert_cache)
    free_choice = count is None and size is None
    if count == 0 or size == 0 or (free_choice and speeds is None):
        return None
    found: dict[str, CachedLayer] = {}
    for device, layers in _by_device(placement, sizes, budgets).items():
        each = sum(_each(sizes, device, tensors) for tensors in layers.values())
        free = next(budget.free for budget in budgets if budget.name == device) + spare.get(device, 0)
        left = max(0, free - sizes.on(placement)[device])
        most = min(_experts(tensors) for tensors in layers.values())
        wanted = min(most, left // each if free_choice else (count or (size or 0) // each))
        if not free_choice and (wanted * each > left or (size is not None and not wanted)):
            raise DeviceError(
                f"device {device}: {wanted or 1} cached experts of {len(layers)} layers need"
                f" {max(1, wanted) * each / MIB:,.0f} MiB and it has {left / MIB:,.0f} MiB left: take fewer"
            )
        if wanted and (
            speeds is None
            or not free_choice
            or _helps(sizes, placement, device, layers, speeds, share=wanted / most)
        ):
            for label, tensors in layers.items():
                names = tuple(dict.fromkeys(t.name for t in tensors))
                found[label] = CachedLayer(device, wanted, _experts(tensors), names)
    if not found:
        return None
    share = sum(x.count / x.experts for x in found.values()) / len(found)
    return ExpertCacheLayout(placement.first, found, share)


def reserved_bytes(sizes: Sizes, options: PlacementOptions, device: str) -> int:
    """Bytes of a device to reserve for an expert cache, if the options request one and leave experts on the
    CPU.
    """
    _, count, size = read_expert_cache(options.expert_cache)
    if not count and not size:
        return 0
    left = ruled(options.rules, sizes)
    tensors = {t.name: t for t in sizes.tensors if t.expert and t.name in left}
    each = _each(sizes, device, list(tensors.values()))
    return (
        min(size, each * max(map(_experts_of, tensors.values()), default=0)) if size else (count or 0) * each
    )


def with_expert_cache(placement: Placement, cached: ExpertCacheLayout | None) -> Placement:
    """The placement plus the devices of the tensors that the split graph adds."""
    return (
        placement if cached is None else replace(placement, weights={**placement.weights, **cached.weights})
    )


def _by_device(
    placement: Placement, sizes: Sizes, budgets: Sequence[MemoryBudget]
) -> dict[str, dict[str, list[Tensor]]]:
    """By device apart and layer: the experts' tensors, where all of them are on the CPU."""
    far = {budget.name for budget in budgets if budget.apart}
    found: dict[str, dict[str, list[Tensor]]] = {}
    for t in sizes.tensors:
        home = placement.label(t.label)
        if t.expert and home in far:
            found.setdefault(home, {}).setdefault(t.label, []).append(t)
    for home, layers in found.items():
        staying = {
            label: tensors
            for label, tensors in layers.items()
            if all(placement.weight(t.name, label) == placement.first != home for t in tensors)
        }
        found[home] = staying
    return {home: layers for home, layers in found.items() if layers}


def _experts_of(t: Tensor) -> int:
    count = t.type.shape[0]
    return count if isinstance(count, int) else 0


def _experts(tensors: Sequence[Tensor]) -> int:
    return min(map(_experts_of, tensors))


def _each(sizes: Sizes, device: str, tensors: Sequence[Tensor]) -> int:
    """Bytes of one expert of these tensors on a device, with alignment and tables."""
    return sum(
        -(-sizes.held[device][t.name] // _experts_of(t)) + 128 for t in {t.name: t for t in tensors}.values()
    )


def _helps(
    sizes: Sizes,
    placement: Placement,
    device: str,
    layers: Mapping[str, Sequence[Tensor]],
    speeds: Mapping[str, Speed],
    share: float,
) -> bool:
    """Whether the device, its start-up cost included, reads a token's experts faster than the CPU, and this
    share of them saves the CPU more time than a turn of the device beside it takes.
    """
    inner = sum(t.read for t in sizes.tensors if t.label.startswith("blk.")) / sizes.layers or 1.0
    read = sum(t.read for tensors in layers.values() for t in tensors) / len(layers)
    here, there = (speeds[name].layer[0] * read / inner for name in (placement.first, device))
    start = speeds[device].start
    return there + start < here and share * here > start + HANDOVER
