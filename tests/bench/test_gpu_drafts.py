"""Tests of bench/gpu_drafts.py: which steps it times, and that they leave a sequence as it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import gpu_drafts
import pytest

from satchel.runtime.api.model import Model
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import Engine
from satchel.runtime.tasks.bench import Runner

DRAFTS, DEPTHS, STEPS, REPEATS = [1, 3], [5, 20], 2, 2


@pytest.fixture
def model(bundled_model: Path) -> Iterator[Model]:
    with Model.load(bundled_model, slots=1, context=64) as found:
        yield found


def test_each_step_computes_the_draft_and_one_row_more(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    step = Engine.step

    def noted(engine: Engine, entries: Sequence[BatchEntry]) -> Sequence[object]:
        found = step(engine, entries)
        seen.append((len(entries[0].draft_tokens), len(found)))
        return found

    monkeypatch.setattr(Engine, "step", noted)
    runner = Runner(model.engine, model.arch.vocab)
    runner.fresh(depth=5)
    gpu_drafts.DraftRunner(runner, STEPS, REPEATS).verify(3)
    assert seen[-1] == (3, 4)


def test_all_costs_are_measured_at_the_same_depth(model: Model) -> None:
    runner = Runner(model.engine, model.arch.vocab)
    lengths = []
    for cost in gpu_drafts.costs(runner, DRAFTS, DEPTHS, STEPS, REPEATS):
        lengths.append((cost.depth, cost.drafts, model.engine.length(0)))
        assert cost.device > 0 and cost.step > 0
    assert lengths == [(depth, n, depth) for depth in DEPTHS for n in (0, *DRAFTS)]


def test_a_row_compares_with_the_step_without_drafts() -> None:
    single = gpu_drafts.DraftCost(128, 0, 1.5e-3, 2e-3)
    assert single.row(single) == "| 128 | 0 | 1,500 | 1.00 | 2,000 | 1.00 |"
    cost = gpu_drafts.DraftCost(128, 8, 3e-3, 5e-3)
    assert cost.row(single) == "| 128 | 8 | 3,000 | 2.00 | 5,000 | 2.50 |"
