"""Tests of the simulated fleets of bench/fleet_simulation.py: an engine computes what steps one by one
would, and the router keeps its bounds on small fleets. All times are of a simulated clock.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise, product
from math import inf

import numpy as np
import pytest
from fleet_policies import Oracle, alone, ends
from fleet_simulation import KV_BYTES, Figures, Scaling, fleet, simulate
from fleet_traffic import CODE, CONVERSATION, Agents, Traffic, hot, plain, steps
from simulated_engine import BlockCache, EngineSpec, SimulatedEngine, Work
from simulated_fleet import Happening, SimulatedFleet

from satchel.runtime.fleet.autoscale import Limits
from satchel.runtime.fleet.pools import KVLink, PrefillPools
from satchel.runtime.fleet.router import Ask, LeastTime, RoundRobin, Route

SPEC = EngineSpec()


def router(fleet: SimulatedFleet) -> LeastTime:
    return LeastTime(holders=fleet.holding)


def round_robin(fleet: SimulatedFleet) -> RoundRobin:
    return RoundRobin()


def works(requests: int, seed: int, prompts: int = 3000, answers: int = 200) -> list[Work]:
    draw, made, at = random.Random(seed), [], 0.0
    for number in range(requests):
        at += draw.expovariate(40)
        prompt, answer = draw.randint(1, prompts), draw.randint(1, answers)
        digests = [f"{number} {n}".encode() for n in range((prompt + answer) // SPEC.block)]
        made.append(Work(number, at, prompt, answer, digests))
    return made


def step_by_step(spec: EngineSpec, given: list[Work]) -> dict[int, tuple[float, float]]:
    """First and last token of each, with one loop pass per step: what the closed form must give."""
    a, b, c, d = spec.step
    coming, waiting, running, now = sorted(given, key=lambda w: w.arrived), [], [], 0.0
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    while coming or waiting or running:
        if not waiting and not running:
            now = max(now, coming[0].arrived)
        while coming and coming[0].arrived <= now + 1e-12:
            work = coming.pop(0)
            waiting.append([work, work.prompt])
        budget, parts = spec.chunk, []
        for entry in waiting:
            if budget and len(running) + len(parts) < spec.slots:
                parts.append((entry, min(budget, entry[1])))
                budget -= parts[-1][1]
        read = sum(w.prompt + n for w, n in running)
        read += waiting[0][0].prompt - waiting[0][1] if parts else 0
        now += a + b * len(running) + c * sum(n for _, n in parts) + d * read
        for entry in running:
            entry[1] += 1
        for entry, n in parts:
            entry[1] -= n
            if not entry[1]:
                waiting.remove(entry)
                first[entry[0].number] = now
                running.append([entry[0], 1])
        last |= {w.number: now for w, n in running if n == w.answer}
        running = [entry for entry in running if entry[1] < entry[0].answer]
    return {n: (first[n], last[n]) for n in first}


def test_an_engine_takes_the_time_of_its_steps_one_by_one() -> None:
    given = works(60, 1)
    expected = step_by_step(SPEC, given)
    simulated = SimulatedFleet({"m": SPEC}, round_robin, Traffic(iter(given)))
    simulated.run()
    for work in given:
        assert (work.first, work.ended) == pytest.approx(expected[work.number], rel=1e-9)


def test_a_forecast_is_what_happens_if_nobody_comes() -> None:
    ended: dict[int, float] = {}

    def told(work: Work, time: float, last: bool) -> None:
        if last:
            ended[work.number] = time

    engine = SimulatedEngine(SPEC, BlockCache(SPEC), 0.0, told)
    given = works(30, 2)
    for work in given[:-1]:
        engine.add(work, 0.5)
    before = engine.report(0.6)
    forecast = ends(engine, 0.6, given[-1])
    assert engine.report(0.6) == before
    engine.add(given[-1], 0.6)
    while engine.ends < inf:
        engine.advance()
    assert forecast == pytest.approx(sorted(ended.values())) and len(forecast) == 30
    assert engine.report(9.9)[:3] == (0, 0, 0)


def test_cached_prefixes_are_found_until_they_are_evicted_leaves_first() -> None:
    spec = SPEC._replace(tokens=40 * 64)
    cache = BlockCache(spec)
    engine = SimulatedEngine(spec, cache, 0.0, lambda work, time, last: None)
    chain = [bytes([n]) for n in range(20)]
    for number, digests in enumerate([chain, chain[:10], [bytes([100 + n]) for n in range(30)]]):
        before = cache.find(digests)
        engine.add(Work(number, 0.0, len(digests) * 64, 1, digests), 0.0)
        while engine.ends < inf:
            engine.advance()
        assert before == (10 if number == 1 else 0)
    assert cache.find(chain) == 9 and cache.free() == spec.tokens


def test_memory_that_runs_out_delays_and_preempts_and_all_end() -> None:
    spec = SPEC._replace(tokens=6000)
    simulated = SimulatedFleet({"m": spec}, round_robin, Traffic(iter(works(60, 3, 300, 1500))))
    outcome = simulated.run()
    assert len(outcome.works) == 60 and outcome.preempted > 0
    assert all(w.arrived < w.first <= w.ended for w in outcome.works)
    large = Traffic(iter([Work(0, 0.0, 7000, 1, [])]))
    with pytest.raises(ValueError, match="does not fit"):
        SimulatedFleet({"m": spec}, round_robin, large).run()


def within(figures: Figures, other: Figures, share: float) -> None:
    for name in ("finish", "p50", "p99"):
        assert getattr(figures, name) <= (1 + share) * getattr(other, name), name


@pytest.mark.parametrize("kind", ["conversation", "hot", "code"])
def test_within_a_tenth_of_the_oracle_and_never_worse_than_round_robin(kind: str) -> None:
    def traffic() -> Traffic:
        if kind == "hot":
            return hot(CONVERSATION, 36, 500, 64, 1, prefixes=40)
        return plain(*((CODE, 10) if kind == "code" else (CONVERSATION, 36)), 500, 64, 1)

    found = simulate(fleet(4), router, traffic())
    within(found, simulate(fleet(4), Oracle, traffic()), 0.1)
    within(found, simulate(fleet(4), round_robin, traffic()), 0.05)


def test_agents_first_tokens_come_in_half_the_time_of_round_robin() -> None:
    found, turns = (simulate(fleet(8), p, Agents(4, 24, 64, 1)) for p in (router, round_robin))
    assert found.p50 <= turns.p50 / 2
    within(found, turns, 0.05)


def test_within_a_tenth_of_the_best_of_all_placements() -> None:
    """Two engines, eight requests: all 256 placements, the future known."""

    class Placed:
        def __init__(self, places: tuple[int, ...]) -> None:
            self._places = iter(places)

        def choose(self, ask: Ask, views: object) -> Route:
            return Route(f"m{next(self._places)}", 0.0, 0.0, 0)

    def traffic() -> Traffic:
        return hot(CONVERSATION, 40, 8, 64, 5, prefixes=3)

    best = min(
        simulate(fleet(2), lambda fleet, p=places: Placed(p), traffic()).finish
        for places in product((0, 1), repeat=8)
    )
    assert best <= simulate(fleet(2), router, traffic()).finish <= 1.1 * best


def test_nobody_is_faster_than_alone_on_an_engine_that_forgets_nothing() -> None:
    def traffic() -> Traffic:
        return hot(CONVERSATION, 36, 200, 64, 2, prefixes=20)

    given = [(w.prompt, w.answer, w.digests) for w in traffic().arrivals()]
    bounds = alone(given, SPEC)
    outcome = SimulatedFleet(fleet(4), Oracle, traffic()).run()
    for work in outcome.works:
        first, last = bounds[work.number]
        assert work.first - work.arrived >= first - 1e-9 and work.ended - work.arrived >= last - 1e-9


def test_members_are_lost_leave_and_join_and_every_request_ends_once() -> None:
    happenings = [
        Happening(0.5, "lost", "m0"),
        Happening(1.0, "join", "m4", SPEC),
        Happening(1.5, "leave", "m1"),
        Happening(2.0, "lost", "m2"),
        Happening(2.0, "lost", "nobody"),
    ]
    simulated = SimulatedFleet(fleet(4), router, plain(CONVERSATION, 30, 150, 64, 1), happenings=happenings)
    outcome = simulated.run()
    assert sorted(w.number for w in outcome.works) == list(range(150))
    assert any(w.lost for w in outcome.works) and not simulated.members
    assert all(w.arrived < w.first <= w.ended for w in outcome.works)
    assert 0 < outcome.busy <= outcome.member_seconds <= 4 * outcome.end


def test_requests_wait_for_a_member_where_there_is_none() -> None:
    happenings = [Happening(0.5, "lost", "m0"), Happening(3.0, "join", "m1", SPEC)]
    outcome = SimulatedFleet(fleet(1), router, plain(CONVERSATION, 5, 20, 64, 1), happenings=happenings).run()
    assert len(outcome.works) == 20
    gone = SimulatedFleet(fleet(1), router, plain(CONVERSATION, 5, 20, 64, 1), happenings=happenings[:1])
    with pytest.raises(ValueError, match="never found a member"):
        gone.run()


def test_a_slow_member_and_old_reports_cost_little() -> None:
    specs = fleet(4) | {"m0": SPEC.slower(2)}

    def traffic() -> Traffic:
        return hot(CONVERSATION, 26, 400, 64, 1, prefixes=40)

    within(simulate(specs, router, traffic()), simulate(specs, round_robin, traffic()), 0.05)
    within(simulate(specs, router, traffic(), every=0.5), simulate(specs, round_robin, traffic()), 0.05)


def test_a_fleet_grows_with_the_load_and_shrinks_after_it() -> None:
    limits = Limits(least=1, most=6, aim=0.1, up=10.0, down=10.0)
    scaling = Scaling(steps(CONVERSATION, [(10, 4), (50, 30), (90, 2)], 64, 1), limits, 1, 150.0)
    scaling.fleet.run()
    sizes = [n for _, n, _ in scaling.history]
    assert sizes[0] == 1 and max(sizes) >= 3 and sizes[-1] == 1
    assert all(abs(a - b) <= 3 for a, b in pairwise(sizes))


def test_prompts_move_where_the_link_is_fast_and_not_where_it_is_slow() -> None:
    moved = {}
    for rate in (50e9, 1e5):
        link = KVLink(KV_BYTES, rate)
        simulated = SimulatedFleet(
            fleet(3),
            lambda fleet, link=link: PrefillPools({"m0": "prefill", "m1": "decode", "m2": "decode"}, link),
            plain(CONVERSATION, 25, 150, 64, 1),
            move=lambda tokens, since, link=link: link.late(tokens, SPEC.chunk, since),
        )
        outcome = simulated.run()
        assert sorted(w.number for w in outcome.works) == list(range(150))
        assert all(w.arrived < w.first <= w.ended for w in outcome.works)
        moved[rate] = simulated.moved
    assert moved[50e9] > 0 and moved[1e5] == 0


def test_traffic_has_the_lengths_and_the_bursts_that_it_says() -> None:
    def counted(traffic: Iterator[Work]) -> tuple[list[Work], float]:
        made = list(traffic)
        counts = np.bincount([int(w.arrived) for w in made])[:-1]
        return made, float(counts.var() / counts.mean())

    talk, steady = counted(plain(CONVERSATION, 6, 6000, 64, 1).arrivals())
    code, bursts = counted(plain(CODE, 3, 6000, 64, 1).arrivals())
    assert np.median([w.prompt for w in talk]) == pytest.approx(1020, rel=0.05)
    assert np.median([w.answer for w in talk]) == pytest.approx(129, rel=0.1)
    assert np.median([w.prompt for w in code]) == pytest.approx(1469, rel=0.1)
    assert np.median([w.answer for w in code]) == pytest.approx(13, rel=0.1)
    assert 1.1 < steady < 2.0 and 8 < bursts < 20
    assert all(a.arrived <= b.arrived for a, b in pairwise(talk))
    assert all(len(w.digests) == (w.prompt + w.answer) // 64 for w in code)
