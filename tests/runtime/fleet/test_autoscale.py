"""How many replicas are wanted: up with the wait, down one by one, still after a change."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satchel.errors import RequestError
from satchel.runtime.fleet.autoscale import Decision, Limits, check, wanted

LIMITS = Limits(least=1, most=8, aim=0.5, up=15.0, down=120.0)
LONG_AGO = Decision(4, -1e6)


def test_a_wait_above_the_aim_adds_in_its_proportion() -> None:
    assert wanted([0.6] * 4, 10.0, LONG_AGO, LIMITS) == Decision(5, 10.0)
    assert wanted([1.5, 0.5, 0.5, 0.5], 10.0, LONG_AGO, LIMITS) == Decision(6, 10.0)


def test_at_most_twice_as_many_at_once() -> None:
    assert wanted([60.0] * 2, 10.0, Decision(2, -1e6), LIMITS) == Decision(4, 10.0)


def test_a_calm_fleet_loses_one_at_a_time() -> None:
    assert wanted([0.1] * 4, 10.0, LONG_AGO, LIMITS) == Decision(3, 10.0)
    assert wanted([0.2] * 4, 10.0, LONG_AGO, LIMITS) is LONG_AGO


def test_nothing_changes_soon_after_a_change() -> None:
    just = Decision(4, 0.0)
    assert wanted([9.0] * 4, 14.9, just, LIMITS) is just
    assert wanted([9.0] * 4, 15.0, just, LIMITS) == Decision(8, 15.0)
    assert wanted([0.0] * 4, 119.0, just, LIMITS) is just
    assert wanted([0.0] * 4, 120.0, just, LIMITS) == Decision(3, 120.0)


def test_replicas_that_start_are_not_asked_for_again() -> None:
    """Two serve, four were asked for: the queue of the two asks for no more than twice two."""
    assert wanted([3.0] * 2, 100.0, Decision(4, 0.0), LIMITS) == Decision(4, 0.0)


def test_the_limits_hold() -> None:
    assert wanted([9.0] * 8, 10.0, Decision(8, -1e6), LIMITS).replicas == 8
    assert wanted([0.0], 10.0, Decision(1, -1e6), LIMITS).replicas == 1
    assert wanted([0.3] * 9, 10.0, Decision(9, 9.0), LIMITS).replicas == 8  # the limit was lowered
    assert wanted([], 10.0, Decision(0, 9.0), LIMITS).replicas == 1


def test_limits_that_contradict_themselves_are_refused() -> None:
    for wrong in (Limits(least=0), Limits(least=9), Limits(aim=0.0), Limits(aim=float("nan")), Limits(up=-1)):
        with pytest.raises(RequestError, match="replicas"):
            check(wrong)
    check(LIMITS)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1e6), max_size=20), st.lists(st.floats(0, 50), min_size=1, max_size=30))
def test_any_reports_stay_within_limits_and_cooldowns(waits: list[float], gaps: list[float]) -> None:
    now, last = 0.0, Decision(1, -1e6)
    for gap in gaps:
        now += gap
        decision = wanted(waits, now, last, LIMITS)
        assert 1 <= decision.replicas <= 8
        if decision.replicas > last.replicas and waits:
            assert now - last.at >= LIMITS.up
        if decision.replicas < last.replicas:
            assert now - last.at >= LIMITS.down and decision.replicas == last.replicas - 1
        last = decision
