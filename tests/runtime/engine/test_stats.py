"""The sums of a model's statistics over its loads."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from satchel.runtime.engine.stats import GAUGES, TOTALS, EngineStats, KVTraffic, StatsCollector


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
