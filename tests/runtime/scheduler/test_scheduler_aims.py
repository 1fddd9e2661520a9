"""Targets of the scheduler: the time of a step, and shortest request first."""

import numpy as np
import pytest
from devices import needs
from simulate import Arrival, open_engine, recorded, run

from satchel.errors import RequestError
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.scheduler import Scheduler, SchedulerLimits, Sequence
from satchel.runtime.scheduler.lengths import START, Lengths
from satchel.runtime.scheduler.steptime import LEARNED, Load
from satchel.runtime.scheduler_limits import SMALL

needs_null = needs("null")


@needs_null
@pytest.mark.parametrize("aim", [0.04, 0.06, 0.12])
def test_steps_keep_to_the_aim_and_everybody_gets_on(aim: float) -> None:
    """Sixteen decoding sequences take 54 ms per step, so the first target makes them take turns."""
    load = [Arrival(0.1 * i, 60 + 40 * i, 150, f"u{i}") for i in range(16)]
    trace = run(open_engine(2048, 16), load, SchedulerLimits(queue=1000, step_seconds=aim))
    late = [seconds for decoding, seconds in trace.steps[40:] if decoding]
    print(f"aim {1e3 * aim:.0f} ms: 95 % of steps within {1e3 * np.percentile(late, 95):.1f} ms")
    # A prompt gets on by `min_prefill_tokens` even where there is no time left.
    assert np.percentile(late, 95) <= aim + 0.0014 * 16 + 0.005
    assert [len(t) for t in trace.tokens.values()] == [150] * 16


@needs_null
def test_those_who_do_not_fit_into_a_step_take_turns() -> None:
    load = [Arrival(0.0, 20, 300, f"u{i}") for i in range(16)]
    tokens = run(open_engine(512, 16), load, SchedulerLimits(queue=1000, step_seconds=0.04)).tokens.values()
    begin, end = max(t[0] for t in tokens), min(t[-1] for t in tokens)
    counts = [sum(begin <= at <= end for at in t) for t in tokens]
    assert min(counts) >= max(counts) - 3 > 50, counts


@needs_null
def test_shortest_first_answers_sooner_and_nobody_starves() -> None:
    rng = np.random.default_rng(0)
    load = [
        Arrival(float(rng.uniform(0, 20)), 900, 200, "long")
        if i % 4 == 0
        else Arrival(float(rng.uniform(0, 20)), 30, 20, "short")
        for i in range(60)
    ]
    ends = []
    for shortest in (False, True):
        limits = SchedulerLimits(queue=1000, ageing=30.0, shortest=shortest)
        trace = run(open_engine(2048, 2), load, limits)
        at = sorted(load, key=lambda a: a.at)
        ends.append(np.array([trace.tokens[i][-1] - a.at for i, a in enumerate(at)]))
        assert len(trace.tokens) == len(load)
    first_come, shortest_first = ends
    print(f"mean time to the end: {first_come.mean():.1f} s, shortest first {shortest_first.mean():.1f} s")
    assert shortest_first.mean() < 0.9 * first_come.mean()
    assert shortest_first.max() < 2 * first_come.max()


@needs_null
def test_the_usual_order_is_first_come() -> None:
    trace = run(open_engine(4096, 1), [Arrival(0.001 * i, 20, 5, "") for i in range(6)])
    firsts = [times[0] for _, times in sorted(trace.tokens.items())]
    assert firsts == sorted(firsts) and recorded()


def ended(user: str, length: int, finish: str = "stop") -> Sequence:
    seq = Sequence(GenerateRequest([1, 2], 1000, user=user), 0.0)
    seq.ids += [5] * length
    seq.finish = finish
    return seq


def test_lengths_are_learned_by_user_from_answers_that_ended_by_themselves() -> None:
    lengths = Lengths()
    assert lengths.answer(ended("a", 0)) == pytest.approx(START)
    for _ in range(40):
        lengths.learn(ended("a", 10))
        lengths.learn(ended("b", 500))
        lengths.learn(ended("a", 900, "length"))
    assert lengths.answer(ended("a", 0)) == pytest.approx(10, rel=0.1)
    assert lengths.answer(ended("b", 0)) == pytest.approx(500, rel=0.1)
    assert 10 < lengths.answer(ended("new", 0)) < 500
    assert lengths.answer(Sequence(GenerateRequest([1], 7, user="b"), 0.0)) == 7
    for i in range(6000):
        lengths.learn(ended(f"u{i}", 3))
    assert lengths.answer(ended("u5999", 0)) < 100


@pytest.mark.parametrize(
    "wrong", [{"queue": 0}, {"ageing": 0.0}, {"step_seconds": -1.0}, {"min_prefill_tokens": 0}]
)
def test_limits_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(RequestError, match=next(iter(wrong)) + "|seconds"):
        SchedulerLimits(**wrong)  # type: ignore[arg-type]


@needs_null
def test_a_prompt_alone_holds_nobody_up_longer_than_the_aim() -> None:
    """Once step times are known; small prompts run at once."""
    engine = open_engine(4096, 4, batch=4096)
    for aim, most in ((0.0, 4096), (10.0, 4096), (0.1, 1000), (0.001, SMALL)):
        scheduler = Scheduler(engine, 4, SchedulerLimits(alone_seconds=aim))
        scheduler.add(Sequence(GenerateRequest([1] * 3000, 1), 0.0))
        scheduler.add(Sequence(GenerateRequest([2] * 3000, 1), 0.0))
        for _ in range(LEARNED):
            scheduler.time.learn(Load(0, 500, 0), 0.05)
            scheduler.time.learn(Load(1, 0, 100), 0.001)
        given = sum(entry.num_tokens for entry in scheduler.plan(0.0).values())
        assert given == pytest.approx(most, rel=0.1)
        for seq in list(scheduler.running):
            scheduler.remove(seq)
    with pytest.raises(RequestError, match="0 or more"):
        SchedulerLimits(alone_seconds=-1)
