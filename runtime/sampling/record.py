"""Encodes sampling options as the struct that a step carries per row. Stages without effect are left out."""

from __future__ import annotations

import numpy as np

from satchel.runtime.device.device import SAMPLING
from satchel.runtime.graph import Array
from satchel.runtime.sampling.chain import CODE
from satchel.runtime.sampling.options import SAMPLERS, Sampling


def chain(s: Sampling) -> tuple[str, ...]:
    """The stages that a row passes, in order."""
    if s.mirostat:
        return ("temperature", f"mirostat_{s.mirostat}") if s.temperature > 0 else ("temperature",)
    kept = tuple(name for name in s.samplers if SAMPLERS[name].is_on(s))
    if s.temperature == 0 and "temperature" in kept and not {"typical", "xtc"} & set(kept):
        # Greedy: no other stage can drop the best candidate.
        return (*(n for n in kept if n in ("penalties", "dry")), "temperature")
    return kept


def record(s: Sampling, context: int) -> Array:
    """A hal_sampling record, a read-only array (). context: the value of a repeat_last_n of -1."""
    made = s.records.get(context)
    if made is None:
        made = s.records[context] = _make(s, context)
    return made


def _make(s: Sampling, context: int) -> Array:
    row = np.zeros((), SAMPLING)
    for name in SAMPLING.names or ():
        if hasattr(s, name) and name not in ("repeat_last_n", "seed"):
            row[name] = getattr(s, name)
    row["dynatemp_range"] = s.dynatemp_range if s.temperature > 0 else 0
    row["repeat_last_n"] = context if s.repeat_last_n < 0 else min(s.repeat_last_n, context)
    row["seed"] = s.seed or 0
    row["mirostat_mu"] = 2 * s.mirostat_tau
    codes = [CODE[name] for name in chain(s)]
    row["chain"][: len(codes)] = codes
    row.flags.writeable = False
    return row
