"""The choice of a member: least cost with hot prefixes, crowds, slow, full and new members, any numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from fleet_cases import BUSY, IDLE, LONG, STEP, asks, everything, nothing, views
from hypothesis import given, settings
from hypothesis import strategies as st

from satchel.runtime.fleet.router import Ask, LeastTime, RoundRobin, View, predict, wait


def chosen(ask: Ask, **views: View) -> str:
    return LeastTime().choose(ask, views).member


def test_a_prefix_draws_its_requests_until_waiting_costs_more_than_computing() -> None:
    has = IDLE._replace(cached=everything)
    assert chosen(LONG, cold=IDLE, has=has) == "has"
    some = has._replace(waiting=1, queued=1000)
    assert chosen(LONG, cold=IDLE, has=some) == "has"
    crowded = has._replace(waiting=8, queued=16_000)
    assert chosen(LONG, cold=IDLE, has=crowded) == "cold"


def test_a_crowd_of_cold_prompts_spreads() -> None:
    """Each choice is seen by the next: none waits while a member is idle."""
    views = {f"m{n}": IDLE for n in range(4)}
    policy, ask, met = LeastTime(), Ask(1000, 100.0, []), []
    for _ in range(8):
        name = policy.choose(ask, views).member
        met.append(name)
        view = views[name]
        views[name] = view._replace(waiting=view.waiting + 1, queued=view.queued + 1000)
    assert sorted(met[:4]) == sorted(met[4:]) == ["m0", "m1", "m2", "m3"]


def test_a_slow_member_gets_less() -> None:
    slow = IDLE._replace(step=(4e-3, 1e-4, 6e-5, 6e-8))
    assert chosen(LONG, slow=slow, quick=IDLE) == "quick"
    assert chosen(LONG, slow=slow, quick=BUSY._replace(waiting=4, queued=20_000)) == "slow"


def test_no_member_without_a_slot_or_room_while_another_has_both() -> None:
    ask = Ask(1000, 100.0, [])
    for full in (BUSY._replace(slots=8), BUSY._replace(free=500)):
        assert predict("full", ask, full).first > predict("busy", ask, BUSY).first
        assert chosen(ask, full=full, open=BUSY) == "open"


def test_a_slot_is_worth_more_than_a_member_that_is_somewhat_quicker() -> None:
    """Of sixty-four that decode one may end with the next step, or all of them after the last: a request
    waits for its place only where that is worth it, such as for the cache of a long prompt.
    """
    ask = Ask(1000, 100.0, [b"block"] * 62)
    full = BUSY._replace(running=64, read=64 * 1000, remaining=100.0, slots=64)
    a, b, c, d = STEP
    slower = full._replace(running=63, step=(1.3 * a, 1.3 * b, c, d))
    assert chosen(ask, full=full, open=slower) == "open"
    assert chosen(ask, full=full._replace(cached=everything), open=slower) == "full"


def test_a_crowd_that_fits_waits_for_no_slot() -> None:
    """Also before the first of its answers has begun."""
    views = {f"m{n}": IDLE._replace(slots=16) for n in range(4)}
    policy, ask = LeastTime(), Ask(32, 128.0, [])
    for _ in range(64):
        name = policy.choose(ask, views).member
        view = views[name]
        views[name] = view._replace(waiting=view.waiting + 1, queued=view.queued + 32)
    assert [view.waiting for view in views.values()] == [16] * 4


def test_equal_members_take_turns() -> None:
    policy, views = LeastTime(), {f"m{n}": IDLE for n in range(3)}
    names = [policy.choose(LONG, views).member for _ in range(6)]
    assert sorted(names[:3]) == ["m0", "m1", "m2"] and names[3:] == names[:3]


def test_members_that_left_are_forgotten_and_new_ones_are_chosen() -> None:
    policy = LeastTime()
    for start in range(0, 40, 2):
        views = {f"m{n}": IDLE for n in range(start, start + 2)}
        assert {policy.choose(LONG, views).member for _ in range(2)} == views.keys()
    assert len(policy._last) <= 4


def test_what_was_predicted_is_the_sum_of_its_parts() -> None:
    """Alone at an idle member: its prompt, then a step for each further token."""
    ask = Ask(1024, 11.0, [])
    route = predict("m", ask, IDLE)
    a, b, c, d = STEP
    first = 1024 * c + 2 * a
    later = 1 / (first + 10 * (a + b + d * (1024 + 5.5))) * (1024 * c) ** 2
    assert abs(route.first - first) < 1e-12
    assert abs(route.seconds - (first + 10 * (a + b + d * (1024 + 5.5)) + later)) < 1e-12
    assert route.cost == route.seconds + 3 * route.first


def test_the_last_token_is_computed_though_all_is_cached() -> None:
    route = predict("m", LONG, IDLE._replace(cached=everything))
    assert route.cached == LONG.prompt - 1 and route.first > 0


def test_a_large_fleet_is_sampled_and_its_holders_are_compared() -> None:
    asked = []

    def holders(digests: Sequence[bytes]) -> list[str]:
        return ["m700", "gone"]

    def view(name: str) -> View:
        def found(digests: Sequence[bytes]) -> int:
            asked.append(name)
            return len(digests) if name == "m700" else 0

        return IDLE._replace(cached=found)

    views = {f"m{n}": view(f"m{n}") for n in range(1000)}
    assert LeastTime(most=16, holders=holders).choose(LONG, views).member == "m700"
    assert len(asked) == len(set(asked)) <= 16


def test_the_wait_grows_with_what_is_before_a_new_prompt() -> None:
    assert wait(IDLE) == 0
    queued = wait(BUSY._replace(waiting=2, queued=4000))
    assert queued > 4000 * STEP[2]
    full = BUSY._replace(slots=8)
    assert wait(full) > wait(BUSY) == 0
    assert wait(full) < predict("full", Ask(512, 100.0, []), full).first / 2, "it is the mean, not a bet"
    assert wait(BUSY._replace(free=100)) > 0


def test_round_robin_goes_round() -> None:
    policy, views = RoundRobin(), {"a": IDLE, "b": BUSY}
    assert [policy.choose(LONG, views).member for _ in range(4)] == ["a", "b", "a", "b"]


@settings(max_examples=100, deadline=None)
@given(st.lists(views, min_size=1, max_size=8), asks)
def test_any_members_and_requests_give_a_finite_choice_of_the_least(members: list[View], ask: Ask) -> None:
    named = {f"m{n}": view for n, view in enumerate(members)}
    route = LeastTime().choose(ask, named)
    costs = {name: predict(name, ask, view).cost for name, view in named.items()}
    assert all(isfinite(cost) and cost >= 0 for cost in costs.values())
    assert route.cost == costs[route.member] == min(costs.values())
    assert 0 <= route.cached <= max(0, ask.prompt - 1) and 0 <= route.first <= route.seconds
    assert all(isfinite(wait(view)) and wait(view) >= 0 for view in members)


@settings(max_examples=100, deadline=None)
@given(views, asks, st.lists(st.booleans(), min_size=2, max_size=6))
def test_a_full_member_is_not_chosen_while_one_like_it_is_idle(
    view: View, ask: Ask, full: list[bool]
) -> None:
    ask = ask._replace(prompt=max(1, ask.prompt))
    idle = view._replace(
        waiting=0, queued=0, running=0, read=0, free=10**8, cached=nothing, slots=4, step=STEP
    )
    busy = idle._replace(running=4, read=4 * 1000, waiting=view.waiting, queued=view.queued)
    named = {f"m{n}": busy if is_full else idle for n, is_full in enumerate([*full, False])}
    assert named[LeastTime().choose(ask, named).member] == idle
