"""How many tokens a step takes where nobody said: as many as fill a GPU where the whole model is on devices
with memory of their own, few enough elsewhere that others need not wait long for a processor's step. An
encoder, which reads a text in one step, takes as many as its context has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from satchel.formats.gguf import GGUF
from satchel.runtime.api.options import Options
from satchel.runtime.device.device import Device
from satchel.runtime.placement.devices import apart
from satchel.runtime.placement.options import PlacementOptions
from satchel.runtime.placement.settle import Measure, Settled, settle

STEP, LARGE, MOST = 512, 4096, 1 << 16


def settle_step(
    gguf: GGUF,
    devices: Sequence[Device],
    options: Options,
    placement_options: PlacementOptions,
    measure: Measure,
) -> tuple[Settled, int]:
    """The placement, and the tokens of a step: options.batch, chosen where that is 0."""
    if options.batch:
        return settle(gguf, devices, options, placement_options, measure), options.batch
    measure = cache(measure)  # a device's speed does not depend on the step
    if any(apart(d) for d in devices):
        settled = settle(gguf, devices, replace(options, batch=LARGE), placement_options, measure)
        if all_apart(settled, devices):
            return settled, _whole(settled, LARGE)
    settled = settle(gguf, devices, replace(options, batch=STEP), placement_options, measure)
    return settled, _whole(settled, STEP)


def _whole(settled: Settled, step: int) -> int:
    return step if settled.arch.causal else min(MOST, max(step, settled.arch.cache.context))


def all_apart(settled: Settled, devices: Sequence[Device]) -> bool:
    """Whether no layer, cache or expert is with a processor."""
    placement, own = settled.placement, {d.name for d in devices if apart(d)}
    used = {placement.label(f"blk.{i}") for i in range(settled.arch.layers)}
    return used | set(placement.states.values()) <= own and not settled.candidate.experts
