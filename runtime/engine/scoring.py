"""Log-probabilities of given tokens: each step of a prompt reports on the tokens that follow, so logits never
leave the device. The engine thread serves other requests between these steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from satchel.errors import RequestError
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.finite import damaged
from satchel.runtime.engine.service import Service
from satchel.runtime.layers.arch import AdapterScales
from satchel.runtime.sampling.logprobs import TOP, Logprob, read_logprob
from satchel.runtime.scheduler.sequence import salted

LOGITS_BYTES = 32 << 20  # most bytes of a step's logits on the device
BESIDE = 64  # most tokens per step while other requests decode


class Scoring:
    """Scoring of a prompt in an empty, leased slot; `found` grows with each step."""

    def __init__(
        self, engine: Engine, slot: int, ids: Sequence[int], top: int = 0, adapter_scales: AdapterScales = ()
    ) -> None:
        self.engine, self.slot, self.ids, self.top, self.adapter_scales = (
            engine,
            slot,
            ids,
            top,
            adapter_scales,
        )
        self.most = max(1, min(engine.batch, LOGITS_BYTES // (4 * engine.vocabulary)))
        self.found: list[Logprob] = []

    def step(self, most: int) -> bool:
        """Scores up to `most` more tokens; False when done."""
        engine, at, ids = self.engine, len(self.found), self.ids
        part = ids[at : min(at + min(most, self.most), len(ids) - 1)]
        if part:
            targets, entry = (
                ids[at + 1 : at + 1 + len(part)],
                BatchEntry(self.slot, part, adapter_scales=self.adapter_scales),
            )
            program = engine.fill([entry], len(part), "scores", every=True)
            program.fields["targets"][: len(part)] = targets
            program.run()
            rows = program.read(np.empty(program.output_shape(), np.float32))
            engine.advance([entry])
            if np.isnan(rows[: len(part), 0]).any():
                raise damaged(engine.source, "logits")
            self.found += [
                read_logprob(row, token, self.top) for row, token in zip(rows, targets, strict=True)
            ]
        return len(self.found) < len(ids) - 1

    def publish(self, salt: str) -> None:
        """Puts the computed blocks into the prefix tree."""
        self.engine.publish(self.slot, self.ids, salted(salt, self.adapter_scales))


def score(
    service: Service, ids: Sequence[int], top: int = 0, salt: str = "", adapter_scales: AdapterScales = ()
) -> list[Logprob]:
    """Log-probability reports of ids[1:], each after the tokens before it; the computed blocks go into the
    prefix tree.

    top: number of top tokens per report, at most 20.
    """
    if not 0 <= top <= TOP:
        raise RequestError(f"top is {top}: it must lie between 0 and {TOP}")
    (slot,) = service.acquire_slots(1)
    scoring = Scoring(service.engine, slot, ids, top, adapter_scales)

    def step() -> bool:
        return scoring.step(BESIDE if service.scheduler.running else scoring.most)

    try:
        while service.ask(step):
            pass
        service.ask(lambda: scoring.publish(salt))
    finally:
        service.release_slots([slot])
    return scoring.found
