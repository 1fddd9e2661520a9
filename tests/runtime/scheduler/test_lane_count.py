"""How many lanes a pipeline's decoding sequences are divided among: the real scheduler, and devices under a
simulated clock that compute more slowly while others do.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest
from devices import needs
from simulate import open_engine

from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.scheduler import Batch, Scheduler, Sequence
from satchel.runtime.scheduler.lane_count import ROUNDS, LaneCount

pytestmark = needs("null")
HOST = 2e-4  # seconds of a step in which no device computes for it: its tokens are given out


@dataclass
class Step:
    batch: Batch
    tokens: list[int]
    stage: int = 0
    left: float = 0.0  # seconds of work at its stage


@dataclass
class Pipeline:
    """Stages that take `fixed` seconds of a step and `row` more for each row. together: what they get done at
    a time while all are busy; 1: they share what one alone has, as many as there are: they share nothing.
    """

    fixed: tuple[float, ...]
    row: tuple[float, ...]
    together: float
    noise: float = 0.0
    now: float = 0.0
    tokens: int = 0
    sizes: list[int] = field(default_factory=list)  # rows of each step

    def rate(self, rows: int, lanes: int, tokens: int) -> float:
        """Tokens per second of so many sequences. lanes: 0: as many as pay."""
        stages, rng = len(self.fixed), np.random.default_rng(rows)
        engine = open_engine(16 + tokens, rows)
        scheduler = Scheduler(engine, rows)
        scheduler.lanes, scheduler.weighs = lanes or stages, not lanes
        for i in range(rows):
            scheduler.add(Sequence(GenerateRequest([1 + i % 40] * 4, tokens), 0.0))
        queues: list[deque[Step]] = [deque() for _ in range(stages)]
        under: deque[Step] = deque()
        self.now, self.tokens = 0.0, 0
        while scheduler.running or scheduler.waiting:
            while len(under) < scheduler.lanes and (batch := scheduler.plan(self.now)):
                step = Step(batch, list(engine.step(tuple(batch.values()))))  # type: ignore[arg-type]
                for seq, entry in batch.items():
                    seq.underway += entry.num_tokens
                self._enter(step, queues, rng)
                under.append(step)
            while under[0].stage < stages:
                self._advance(queues, rng)
            done = under.popleft()
            self.now += HOST
            self.sizes.append(len(done.batch))
            self.tokens += len(done.tokens)
            scheduler.done(done.batch, done.tokens, self.now, 1e-3)
        return self.tokens / self.now

    def _enter(self, step: Step, queues: list[deque[Step]], rng: np.random.Generator) -> None:
        rows = sum(entry.num_tokens for entry in step.batch.values())
        work = self.fixed[step.stage] + self.row[step.stage] * rows
        step.left = work * float(rng.lognormal(0, self.noise))
        queues[step.stage].append(step)

    def _advance(self, queues: list[deque[Step]], rng: np.random.Generator) -> None:
        """Until the next step leaves a stage."""
        busy = [queue for queue in queues if queue]
        each = 1 - (1 - self.together / len(queues)) * (len(busy) - 1) / max(1, len(queues) - 1)
        first = min(busy, key=lambda queue: queue[0].left)
        seconds = first[0].left
        for queue in busy:
            queue[0].left -= seconds
        self.now += seconds / each
        step = first.popleft()
        step.stage += 1
        if step.stage < len(queues):
            self._enter(step, queues, rng)


EQUAL = (0.01, 0.01)
ROW = (2e-4, 2e-4)


@pytest.mark.parametrize("together", [1.0, 1.24, 2.0])
@pytest.mark.parametrize(("fixed", "row"), [(EQUAL, ROW), (EQUAL, (2e-3, 2e-3)), ((0.02, 0.002), ROW)])
@pytest.mark.parametrize("rows", [3, 16])
def test_as_many_lanes_as_pay_are_never_slower_than_one(
    rows: int, fixed: tuple[float, ...], row: tuple[float, ...], together: float
) -> None:
    rates = [Pipeline(fixed, row, together, noise=0.1).rate(rows, n, 500) for n in (1, 2, 0)]
    one, two, auto = rates
    print(f"{one:,.0f} t/s in one lane, {two:,.0f} in two, {auto:,.0f} as decided")
    assert auto > 0.97 * one
    assert auto > 0.93 * two  # a gain that may be noise is not taken


def test_two_devices_that_share_nothing_have_two_lanes_and_two_that_share_all_have_one() -> None:
    for together, lanes in ((2.0, 2), (1.0, 1)):
        made = Pipeline(EQUAL, (1e-3, 1e-3), together)
        made.rate(16, 0, 200)
        assert made.sizes[4 * ROUNDS : 4 * ROUNDS + 64] == [16 // lanes] * 64


def test_three_stages_find_two_lanes_where_three_are_slower() -> None:
    """The last stage takes no time: two steps keep the others busy, and with three each has fewer rows."""
    made = Pipeline((0.01, 0.01, 0.001), (2e-3, 2e-3, 0.0), 3.0)
    one, two, three, auto = (made.rate(12, n, 500) for n in (1, 2, 3, 0))
    assert auto > 0.92 * two > 1.1 * max(one, three)


def test_steps_that_parted_come_together_again() -> None:
    """Sequences in two lanes are in one step once one lane is decided: one lane waits for the other."""
    engine = open_engine(64, 4)
    scheduler = Scheduler(engine, 4)
    scheduler.lanes, scheduler.weighs = 2, False
    seqs = [Sequence(GenerateRequest([1, 2], 30), 0.0) for _ in range(4)]
    for seq in seqs:
        scheduler.add(seq)

    def launched() -> Batch:
        batch = scheduler.plan(0.0)
        for seq, entry in batch.items():
            seq.underway += entry.num_tokens
        return batch

    def ended(batch: Batch) -> None:
        scheduler.done(batch, engine.step(tuple(batch.values())), 0.0, 1e-3)

    ended(launched())
    first, second = launched(), launched()
    assert (len(first), len(second)) == (2, 2)
    scheduler.lanes_for = lambda rows: 1  # type: ignore[method-assign]
    ended(first)
    assert launched() == {}
    ended(second)
    assert len(launched()) == 4


def measured(count: LaneCount, rows: int, seconds: dict[int, float], rounds: int) -> list[int]:
    """The lanes of each round, whose seconds depend on them."""
    now, found = 0.0, []
    count.ended(rows, now)
    for _ in range(rounds):
        lanes = count.of(rows, 2)
        found.append(lanes)
        for _ in range(lanes):
            now += seconds[lanes] / lanes
            count.ended(rows // lanes, now)
    return found


def test_comparisons_become_rare_and_follow_a_machine_that_changes() -> None:
    count = LaneCount()
    found = measured(count, 64, {1: 1.0, 2: 0.8}, 2000)
    assert found[-1] == 2 and found.count(1) < 120
    found = measured(count, 64, {1: 0.7, 2: 0.8}, 8000)
    assert found[-1] == 1 and found.index(1) < 6000
    # A number of rows that is near begins with what was found; one far from it begins with one lane.
    again = LaneCount()
    measured(again, 64, {1: 1.0, 2: 0.8}, 100)
    assert again.of(50, 2) == 2 and again.of(4, 2) == 1
    # A gain that may be noise is none.
    assert measured(LaneCount(), 64, {1: 1.0, 2: 0.97}, 500)[-1] == 1
