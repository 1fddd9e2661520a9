"""Which members are begun and which are drained: decisions under a simulated clock, in which engines begin
slowly.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satchel.errors import RequestError
from satchel.runtime.fleet.autoscale import Limits
from satchel.runtime.fleet.scaler import RETRY, Scaler, Seen, Steps

LIMITS = Limits(least=1, most=4, aim=0.5, up=15.0, down=120.0)
COLD = 20.0  # seconds that an engine of the simulation takes to begin


class House:
    """A fleet in which `load` seconds of waiting are divided among the members, and engines begin slowly."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.now, self.load, self.scaler = 0.0, 0.0, Scaler(limits, 0.0)
        self.joining: dict[str, float] = {}
        self.ready, self.draining = ["0"], set[str]()
        self.begun = 1
        self.fails = False
        self.failed: list[str] = []

    def seen(self) -> list[Seen]:
        share = self.load / max(1, len(self.ready))
        found = [Seen(n, "ready", share, work=int(n), start=COLD if n != "0" else 0.0) for n in self.ready]
        found += [Seen(n, "joining") for n in self.joining] + [Seen(n, "draining") for n in self.draining]
        return found + [Seen(n, "failed") for n in self.failed]

    def second(self) -> Steps:
        self.now += 1.0
        self.draining.clear()
        for name in [n for n, at in self.joining.items() if self.now >= at + COLD]:
            del self.joining[name]
            (self.failed if self.fails else self.ready).append(name)
        steps = self.scaler.step(self.seen(), self.now)
        for name in steps.drop:
            self.failed.remove(name)
        for name in steps.drain:
            self.ready.remove(name)
            self.draining.add(name)
        for _ in range(steps.begin):
            self.joining[str(self.begun)] = self.now
            self.begun += 1
        return steps

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.second()


def test_a_fleet_grows_with_its_load_and_shrinks_when_it_is_calm() -> None:
    house = House()
    house.load = 1.6
    house.seconds(60)
    assert len(house.ready) == 4 and not house.joining and house.scaler.start == COLD
    house.load = 0.0
    house.seconds(90)
    assert len(house.ready) == 4, "not within `down` of the last change"
    house.seconds(3 * 121)
    assert house.ready == ["3"], "those with the least to do leave; the last one stays"
    house.seconds(500)
    assert house.ready == ["3"]


def test_no_more_are_begun_while_those_that_were_begun_load() -> None:
    house = House()
    house.load = 100.0
    house.seconds(16)
    assert len(house.joining) == 1 and house.scaler.last.replicas == 2
    house.seconds(int(COLD))
    assert len(house.ready) + len(house.joining) <= 4


def test_the_cold_start_is_waited_for_before_more_are_added() -> None:
    """Longer than `up`: what was added has to show in the waits first."""
    scaler = Scaler(LIMITS._replace(up=1.0), 0.0)
    both = [Seen("0", "ready", 3.0), Seen("1", "ready", 3.0, start=40.0)]
    assert scaler.step(both, 50.0).begin == 2
    assert scaler.step([*both, Seen("2", "ready", 3.0), Seen("3", "ready", 3.0)], 60.0) == Steps()
    wide = Scaler(LIMITS._replace(up=1.0, most=9), 0.0)
    assert wide.step(both, 50.0).begin == 2
    four = [*both, Seen("2", "ready", 3.0, start=5.0), Seen("3", "ready", 3.0, start=5.0)]
    assert wide.step(four, 89.0) == Steps() and wide.step(four, 90.0).begin == 4


def test_a_lost_member_is_replaced_at_once() -> None:
    scaler = Scaler(LIMITS._replace(least=2), 0.0)
    assert scaler.step([Seen("0", "ready"), Seen("1", "ready")], 1.0) == Steps()
    assert scaler.step([Seen("0", "ready")], 2.0) == Steps(begin=1)
    assert scaler.step([Seen("0", "ready"), Seen("2", "pending")], 3.0) == Steps()


def test_engines_that_fail_are_given_up_and_tried_again_ever_later() -> None:
    house = House(LIMITS._replace(least=2))
    house.fails = True
    times = []
    for _ in range(400):
        if house.second().begin:
            times.append(house.now)
    gaps = [b - a for a, b in pairwise(times)]
    assert gaps[:3] == [COLD + RETRY, COLD + 2 * RETRY, COLD + 4 * RETRY]
    house.fails = False
    house.seconds(400)
    assert len(house.ready) == 2 and not house.failed


def test_what_is_pending_is_taken_back_before_members_are_drained() -> None:
    scaler = Scaler(LIMITS._replace(least=1, down=0.0), 0.0)
    busy = [Seen("0", "ready", 2.0), Seen("1", "ready", 2.0)]
    assert scaler.step(busy, 20.0).begin == 2
    calm = [Seen("0", "ready"), Seen("1", "ready"), Seen("2", "pending"), Seen("3", "pending")]
    assert scaler.step(calm, 200.0) == Steps(drain=("3",))


def test_other_limits_hold_from_the_next_look_whatever_was_changed_before() -> None:
    house = House(LIMITS._replace(least=2))
    house.seconds(2)
    house.scaler.bound(4, 4, house.now)
    assert house.second().begin == 2
    house.seconds(30)
    house.scaler.bound(1, 1, house.now)
    assert len(house.second().drain) == 3
    # A number that was set stays within wider limits, until the load asks for another.
    house.scaler.bound(3, 4, house.now)
    house.scaler.bound(1, 4, house.now)
    house.seconds(30)
    assert len(house.ready) == 3
    with pytest.raises(RequestError, match="least = 2, most = 1"):
        house.scaler.bound(2, 1, house.now)


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(RequestError, match="least <= most"):
        Scaler(Limits(least=3, most=2), 0.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 3)), min_size=1, max_size=40))
def test_whatever_the_load_the_limits_hold(loads: list[tuple[float, int]]) -> None:
    """(load, members lost) for ten seconds each."""
    house = House(LIMITS._replace(down=10.0))
    for load, lost in loads:
        house.load = load
        del house.ready[: min(lost, len(house.ready) - 1)]
        for _ in range(10):
            serving = len(house.ready)
            steps = house.second()
            assert len(house.ready) + len(house.joining) <= LIMITS.most
            assert house.ready or not serving, "the last that serves is never drained"
            assert not (steps.begin and steps.drain)
