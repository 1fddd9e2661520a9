"""Chooses the tokens per step (batch size) where the user set none: enough to fill a GPU if it computes with
the whole model in long steps, few enough elsewhere that requests do not wait long for a CPU step. An encoder,
which reads a text in one step, takes its whole context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from satchel.formats.gguf import GGUF
from satchel.runtime.api.options import Options
from satchel.runtime.device.device import Device
from satchel.runtime.placement.devices import apart
from satchel.runtime.placement.options import AUTO, PlacementOptions
from satchel.runtime.placement.settle import Measure, Settled, settle

STEP, LARGE, MOST = 512, 4096, 1 << 16


def settle_step(
    gguf: GGUF,
    devices: Sequence[Device],
    options: Options,
    placement_options: PlacementOptions,
    measure: Measure,
) -> tuple[Settled, int]:
    """The placement, and the tokens per step: options.batch, or chosen if that is 0."""
    if options.batch:
        return settle(gguf, devices, options, placement_options, measure), options.batch
    measure = cache(measure)  # a device's speed does not depend on the step

    def settled(step: int) -> Settled:
        return settle(gguf, devices, replace(options, batch=step), placement_options, measure)

    large = settled(LARGE) if any(apart(d) for d in devices) else None
    if large is None or not all_apart(large, devices):
        small = settled(STEP)
        return small, _whole(small, STEP)
    if large.prefetch is not None and placement_options.prefetch == AUTO:
        # A large step sends the weights less often, and takes memory that more of them could have.
        small = settled(STEP)
        if small.predicted(devices, measure).seconds < large.predicted(devices, measure).seconds:
            return small, _whole(small, STEP)
    return large, _whole(large, LARGE)


def _whole(settled: Settled, step: int) -> int:
    return step if settled.arch.causal else min(MOST, max(step, settled.arch.cache.context))


def all_apart(settled: Settled, devices: Sequence[Device]) -> bool:
    """Whether no layer, cache or expert is on a CPU in a long step."""
    prefetch = settled.prefetch
    placement = settled.placement if prefetch is None else prefetch.placement
    own = {d.name for d in devices if apart(d)}
    labels = [f"blk.{i}" for i in range(settled.arch.layers)]
    used = {placement.label(label) for label in labels}
    stay = settled.candidate.experts if prefetch is None else not set(placement.weights.values()) <= own
    # A CPU's layer computes its attention there, unless its keys and values travel with its weights.
    travelling = {} if prefetch is None else prefetch.states
    homes = {settled.placement.label(label) for label in labels if label not in travelling}
    return used | homes | set(placement.states.values()) <= own and not stay
