"""Encodes sampling options as the struct that a step carries per row. Stages without effect are left out."""

from __future__ import annotations

import numpy as np

from satchel.runtime.device.device import SAMPLING
from satchel.runtime.graph import Array
from satchel.runtime.sampling.chain import CODE
from satchel.runtime.sampling.options import SAMPLERS, Sampling

N_NUMBERS = SAMPLING["chain"].base["numbers"].shape[0]  # HAL_STAGE_NUMBERS
# A float holds each whole number up to this one. It exceeds every model's vocabulary and context.
MOST_WHOLE = 1 << 24


def chain(s: Sampling) -> tuple[str, ...]:
    """The stages that a row passes, in order."""
    if s.mirostat:
        return ("temperature", f"mirostat_{s.mirostat}") if s.temperature > 0 else ("temperature",)
    kept = tuple(name for name in s.samplers if SAMPLERS[name].is_on(s))
    if s.temperature == 0 and "temperature" in kept and not any(SAMPLERS[name].drops_best for name in kept):
        return (*(name for name in kept if SAMPLERS[name].edits), "temperature")  # greedy
    return kept


def numbers(s: Sampling, stage: str) -> tuple[float, ...]:
    """The numbers of a stage (hal_stage), zeros behind them."""
    given = [getattr(s, name) for name in SAMPLERS[stage].numbers] if stage in SAMPLERS else []
    exact = [min(x, MOST_WHOLE) if isinstance(x, int) else x for x in given]
    return (*exact, *(0.0,) * (N_NUMBERS - len(exact)))


def record(s: Sampling) -> Array:
    """A hal_sampling record, a read-only array ()."""
    if s.record is None:
        object.__setattr__(s, "record", _make(s))
    assert s.record is not None
    return s.record


def _make(s: Sampling) -> Array:
    row = np.zeros((), SAMPLING)
    row["seed"], row["mirostat_mu"] = s.seed or 0, 2 * s.mirostat_tau
    for i, stage in enumerate(chain(s)):
        row["chain"][i] = CODE[stage], numbers(s, stage)
    row.flags.writeable = False
    return row
