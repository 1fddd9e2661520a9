"""The sums of a model's statistics over its loads."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest

from satchel.runtime.engine.stats import GAUGES, TOTALS, EngineStats, StatsCollector, StepFacts
from satchel.runtime.engine.tally import OFTEN, KVTraffic, Usage


def some(count: int) -> EngineStats:
    """Statistics whose numbers are all the count, with as many values in each histogram."""
    collector = StatsCollector(KVTraffic(()))
    for histogram in collector.histograms.values():
        for _ in range(count):
            histogram.add(1.0)
    numbers: dict[str, Any] = dict.fromkeys((*GAUGES, *TOTALS), count)
    return replace(collector.snapshot(0, 0, (0, 0, 0)), requests={"stop": count}, **numbers)


def test_each_field_is_a_gauge_or_a_total() -> None:
    names = {field.name for field in fields(EngineStats)} - {"requests", "histograms"}
    assert set(GAUGES) | set(TOTALS) == names and not set(GAUGES) & set(TOTALS)


def test_loads_add_up_and_leave_no_gauge() -> None:
    both = some(2).after(some(3).ended())
    assert all(getattr(both, name) == 5 for name in TOTALS)
    assert all(getattr(both, name) == 2 for name in GAUGES)
    assert both.requests == {"stop": 5}
    assert all(one.count == 5 and one.total == 5.0 for one in both.histograms.values())
    assert all(getattr(both.ended(), name) == 0 for name in GAUGES)
    assert some(2).after(None) == some(2)


@dataclass(eq=False)
class Sequence:
    """A sequence as the statistics see one."""

    length: int  # tokens in the cache
    used: Usage = field(default_factory=Usage)
    arrived: float = 0.0
    started: float = -1.0
    first: float = -1.0
    cached: int = 0
    preempted: int = 0
    finish: str = ""
    prompt: int = 1
    generated: int = 1


@pytest.mark.parametrize("windows", [(), ((0, 6),), ((0, 2), (10, 4)), ((16, 3), (4, 5))])
def test_sequences_that_decode_get_what_they_would_step_by_step(windows: tuple[tuple[int, int], ...]) -> None:
    """They come, stay for many steps, stay out of some, and end; others compute prompts beside them."""
    rng, traffic = random.Random(3), KVTraffic(windows)
    tallied, plain = StatsCollector(traffic), StatsCollector(traffic)
    pairs = [(Sequence(n := rng.randrange(40)), Sequence(n)) for _ in range(12)]
    present: list[tuple[Sequence, Sequence]] = []
    for step in range(4 * OFTEN):
        if step % 5 == 0 or step > 3 * OFTEN:
            present = rng.sample(pairs, rng.randrange(1, len(pairs)))
        prompt = rng.choice([None, *pairs])
        facts = StepFacts(1.0 + step, 64.0 * len(present), {"a": 2.0, f"b{step % 2}": 1.0}, 0.5)
        chosen = [pair for pair in present if pair is not prompt]
        before = [one.length for one, _ in chosen]
        others = [] if prompt is None else [(prompt, 3)]
        tallied.step(
            [a for a, _ in chosen], before, [(p[0], n, p[0].length, False) for p, n in others], facts
        )
        parts = [(b, 1, b.length, True) for _, b in chosen]
        plain.step([], [], parts + [(p[1], n, p[1].length, False) for p, n in others], facts)
        for pair, n in [*((pair, 1) for pair in chosen), *others]:
            for one in pair:
                one.length += n
    assert any(a.used.steps != b.used.steps for a, b in pairs), "some are members still"
    for a, b in pairs:
        tallied.ended(a, 1.0)
        assert a.used.steps == b.used.steps and a.used.kv_bytes == b.used.kv_bytes
        for name in ("weight_bytes", "decode_bytes", "decode_seconds"):
            assert getattr(a.used, name) == pytest.approx(getattr(b.used, name))
        assert a.used.devices == pytest.approx(b.used.devices)
    for name, histogram in tallied.histograms.items():
        if name.startswith("step"):
            assert histogram.value() == plain.histograms[name].value()


def test_who_looks_meanwhile_sees_what_was_used_a_while_ago() -> None:
    collector, one = StatsCollector(KVTraffic(((0, 1),))), Sequence(7)
    for step in range(3 * OFTEN):
        collector.step([one], [one.length], [], StepFacts(1.0, 1.0, {}, 0.0))
        one.length += 1
        assert step - OFTEN <= one.used.steps <= step
