"""Requests to a fleet: made-up prompts, requests under way, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from satchel import Model
from satchel.runtime.api.model import WorkerModel
from satchel.runtime.api.reply import Reply
from satchel.runtime.fleet.fleet import Fleet
from satchel.runtime.sampling import Sampling

WARM = Sampling(temperature=1.5, top_k=0, seed=11)


def fleet_of(model: Model) -> Fleet:
    assert isinstance(model, WorkerModel) and model.fleet is not None
    return model.fleet


def made_up(count: int, length: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [[int(t) for t in rng.integers(100, 250, length)] for _ in range(count)]


def begun(model: Model, asked: Sequence[list[int]], most: int, **how: Any) -> list[Reply]:
    """Requests under way."""
    replies = [model.generate(ids, max_tokens=most, sampling=WARM, ignore_eos=True, **how) for ids in asked]
    for reply in replies:
        reply.start()
    return replies


def read(replies: Sequence[Reply]) -> list[list[int]]:
    """Their answers, each read by a client of its own."""
    with ThreadPoolExecutor(len(replies)) as pool:
        list(pool.map(Reply.read, replies))
    return [list(reply.ids) for reply in replies]
