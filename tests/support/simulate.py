"""Simulates a recorded load: the real scheduler and engine on the null backend, with a simulated clock that
advances by the modelled cost of steps.
"""

from __future__ import annotations

import json
from collections import abc
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import tiny

from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.layers.arch import Cache
from satchel.runtime.scheduler import Scheduler, SchedulerLimits, Sequence
from satchel.runtime.scheduler.scheduler import load

LOAD = Path(__file__).parents[1] / "data" / "load.json"
# Seconds of a step: start, a decoded row, a prompt token, a token of context read; as of a 1B model
# on a desktop.
COST = np.array([0.030, 0.0015, 0.0014, 4e-8])


@dataclass(frozen=True)
class Arrival:
    """A request of the load."""

    at: float  # seconds
    prompt: int  # tokens
    answer: int  # tokens
    user: str = ""
    client: str = ""
    priority: int = 0
    patience: float | None = None  # seconds until the deadline; None: none
    alike: int | None = None  # prompts with the same number share a prefix


@dataclass
class Trace:
    """The times of all tokens."""

    tokens: dict[int, list[float]] = field(default_factory=dict)  # by the arrival's number
    end: float = 0.0  # time of the last token of all
    steps: list[tuple[int, float]] = field(default_factory=list)  # (decoding sequences, seconds) of each step

    def gaps(self, which: abc.Sequence[int] | None = None) -> list[float]:
        """Seconds between consecutive tokens of a request."""
        chosen = self.tokens if which is None else {i: self.tokens[i] for i in which}
        return [b - a for times in chosen.values() for a, b in pairwise(times)]


def recorded() -> list[Arrival]:
    """The load in tests/data: arrivals of an afternoon with bursts, with lengths of chats and of
    documents.
    """
    return [Arrival(**row) for row in json.loads(LOAD.read_text())]


def open_engine(context: int, slots: int, blocks: int = 0, batch: int = 512) -> Engine:
    cache = Cache(context=context, slots=slots, block=32, blocks=blocks)
    return tiny.engine("llama", tiny.weights("llama"), cache, find_backend("null").open(), batch=batch)


def run(
    engine: Engine,
    arrivals: abc.Sequence[Arrival],
    limits: SchedulerLimits | None = None,
    static: int = 0,
    whole: abc.Callable[[Arrival], bool] | None = None,
) -> Trace:
    """Simulates the load. static: static batching, groups of so many requests, each group complete before the
    next; 0: continuous batching. whole: requests after which the simulation ends, however many others remain.
    """
    scheduler, trace, now = (
        Scheduler(engine, engine.cache.slots, limits or SchedulerLimits(queue=10_000)),
        Trace(),
        0.0,
    )
    waiting, number, number_of = sorted(arrivals, key=lambda a: a.at), {}, {}
    rng = np.random.default_rng(0)
    left = sum(1 for a in arrivals if whole is None or whole(a))
    while left and (waiting or scheduler.waiting or scheduler.running):
        for seq in scheduler.expired(now):
            scheduler.remove(seq)
            left -= whole is None or whole(number_of[seq])
        idle = not (scheduler.waiting or scheduler.running)
        now = max(now, waiting[0].at) if idle and waiting else now
        group = 0
        while waiting and waiting[0].at <= now and (not static or (idle and group < static)):
            a, group = waiting.pop(0), group + 1
            drawn = rng if a.alike is None else np.random.default_rng(a.alike)
            ids = [int(i) for i in drawn.integers(0, tiny.VOCAB, a.prompt)]
            deadline = None if a.patience is None else now + a.patience
            how = {"user": a.user, "client": a.client, "priority": a.priority, "deadline": deadline}
            seq = Sequence(GenerateRequest(ids, a.answer, **how), a.at)
            number[seq], number_of[seq] = len(number), a
            scheduler.add(seq)
        batch = scheduler.plan(now)
        tokens = engine.step(tuple(batch.values())) if batch else []
        seconds = float(COST @ load(batch).row())
        now += seconds
        trace.steps.append((sum(seq.decoding for seq in batch), seconds))
        for seq, entry in batch.items():
            if entry.rows:
                trace.tokens.setdefault(number[seq], []).append(now)
        ended = [number_of[seq] for seq in scheduler.done(batch, tokens, now, seconds)]
        left -= sum(1 for a in ended if whole is None or whole(a))
        engine.pages.check()
    trace.end = now
    return trace
