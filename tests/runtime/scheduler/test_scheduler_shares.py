"""A06 of the hostile requests: clients get equal shares of the engine, whatever one of them sends."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import tiny
from devices import needs
from simulate import COST, Arrival, Trace, open_engine, run

from satchel.errors import RequestError
from satchel.runtime.api.refusals import QueueFull
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.scheduler import Scheduler, SchedulerLimits, Sequence
from satchel.runtime.scheduler.fair import KNOWN
from satchel.runtime.scheduler.scheduler import NAMES, check
from satchel.runtime.scheduler.scheduler import load as load_of
from satchel.runtime.scheduler.shares import crowd, ended_first, giver, interleaved, split

needs_null = needs("null")
HOSTILE, VICTIM = "hostile", "victim"


def many(count: int, prompt: int, answer: int, every: float = 0.001, **more: object) -> list[Arrival]:
    return [Arrival(every * i, prompt, answer, client=HOSTILE, **more) for i in range(count)]  # type: ignore[arg-type]


MIXTURES = {
    "extreme priorities": many(100, 200, 100, priority=-1000),
    "many requests": many(200, 200, 100),
    "many short ones": many(200, 60, 1),
    "long prompts": many(40, 3900, 4),
    "long answers": many(40, 20, 4000),
    "all of the cache": many(20, 3900, 190, priority=-5),
    "n answers": many(128, 200, 4000, every=0.0, alike=1),
    "many users": [Arrival(a.at, 200, 1000, f"u{i}", HOSTILE) for i, a in enumerate(many(100, 1, 1))],
    "deadlines": many(100, 200, 1000, patience=0.3),
    "a steady stream": many(600, 300, 30, every=0.02, priority=-1000),
    "names that no client gave": [Arrival(0.001 * i, 200, 400, HOSTILE, priority=-9) for i in range(50)],
}


def waits(trace: Trace, load: list[Arrival], at: float) -> tuple[float, float]:
    """Seconds until the victim's first and last token."""
    order = sorted(load, key=lambda a: a.at)
    times = trace.tokens[next(i for i, a in enumerate(order) if a.client == VICTIM)]
    return times[0] - at, times[-1] - at


def beside(others: list[Arrival], slots: int, at: float) -> tuple[float, float]:
    load = [*others, Arrival(at, 200, 100, client=VICTIM)]
    engine = open_engine(4096, slots, blocks=160)
    trace = run(engine, load, SchedulerLimits(queue=10_000), whole=lambda a: a.client == VICTIM)
    engine.close()
    return waits(trace, load, at)


@cache
def honest(slots: int, at: float) -> tuple[float, float]:
    """The same beside one request of another client."""
    return beside([Arrival(max(0.0, at - 0.1), 200, 100, client="honest")], slots, at)


@needs_null
@pytest.mark.parametrize("name", MIXTURES)
def test_a06_a_victim_waits_at_most_twice_what_it_waits_beside_one_request(name: str) -> None:
    assert late(name, 8, 3.0) <= 2


@needs_null
@pytest.mark.nightly
@pytest.mark.parametrize("slots", [2, 4, 16])
@pytest.mark.parametrize("name", MIXTURES)
def test_a06_whenever_it_comes_and_however_many_run(name: str, slots: int) -> None:
    assert max(late(name, slots, 0.1 + 0.37 * i) for i in range(16)) <= 2


def late(name: str, slots: int, at: float) -> float:
    """Factor by which the victim's first or last token is later beside the mixture."""
    ratios = [a / h for a, h in zip(beside(MIXTURES[name], slots, at), honest(slots, at), strict=True)]
    print(f"{name}, {slots} slots: first token {ratios[0]:.2f}, last {ratios[1]:.2f} times as late")
    return max(ratios)


@needs_null
@pytest.mark.parametrize("name", ["extreme priorities", "long answers", "many short ones"])
def test_a06_with_one_slot_clients_take_turns(name: str) -> None:
    assert late(name, 1, 3.0) <= 2


@needs_null
def test_a06_the_hostile_client_has_its_share_too() -> None:
    """A client that sends much gets the capacity that others leave."""
    load = [*many(30, 200, 60), *(Arrival(0.5 * i, 200, 60, client=VICTIM) for i in range(10))]
    engine = open_engine(4096, 4)
    trace = run(engine, load, SchedulerLimits(queue=1000))
    assert len(trace.tokens) == len(load) and all(len(t) == 60 for t in trace.tokens.values())
    engine.close()


@needs_null
def test_a06_a_prompt_that_needs_most_of_the_cache_gets_it_beside_many_small_ones() -> None:
    small = [Arrival(0.1 * i, 300, 40, client=f"c{i % 3}") for i in range(300)]
    large = Arrival(0.5, 3500, 10, client="large")
    engine = open_engine(4096, 8, blocks=120)
    trace = run(engine, [large, *small], SchedulerLimits(queue=1000), whole=lambda a: a is large)
    order = sorted([large, *small], key=lambda a: a.at)
    assert len(trace.tokens[order.index(large)]) == 10
    ended = sum(len(t) == 40 for t in trace.tokens.values())
    print(f"{ended} of the small ones had ended by then")
    assert ended < 200, "it was not left to the end"
    engine.close()


def sequence(client: str, user: str = "", prompt: int = 3) -> Sequence:
    return Sequence(GenerateRequest([1] * prompt, 5, client=client, user=user), 0.0)


def test_a_sequence_without_a_client_is_its_users() -> None:
    assert sequence("", "u").client == "u" and sequence("c", "u").client == "c" and sequence("").client == ""


def test_slots_are_given_back_to_who_has_fewer() -> None:
    had = {"a": 5.0, "b": 1.0, "c": 3.0}.get

    def asked(client: str, begun: bool = False, **slots: int) -> str | None:
        return giver(client, slots, lambda c: had(c, 0.0) or 0.0, begun, lambda c: 1.0)

    assert asked("b", a=2) == "a" and asked("b", a=3, b=1) == "a"
    assert asked("b", a=2, b=1) is None and asked("b", b=4) is None and asked("b") is None
    assert asked("b", a=1, c=1) == "a", "who had most"
    assert asked("b", c=1, begun=True) == "c" and asked("c", a=0, b=1) is None
    assert asked("c", a=2, b=2) == "a"


def test_rows_of_a_step_are_each_clients_first() -> None:
    a, b, c = (sequence("a") for _ in range(3)), [sequence("b")], (sequence("c") for _ in range(2))
    rows = interleaved([*a, *b, *c], lambda client: 1.0)
    assert [r.client for r in rows] == ["a", "b", "c", "a", "c", "a"]
    rows = interleaved(rows, {"a": 4.0, "b": 1.0, "c": 1.0}.__getitem__)
    assert [r.client for r in rows] == ["a", "b", "c", "a", "a", "c"]


def test_another_clients_beginners_count_as_one() -> None:
    victim, hostile = [sequence("v")], [sequence("h") for _ in range(9)]
    assert crowd(victim, hostile) == 1
    assert crowd([*victim, *hostile[:1]], hostile[1:]) == 0.5
    assert crowd(victim, [sequence("v") for _ in range(4)]) == 4, "a client alone is as it was"


def test_prompts_share_what_there_is_by_what_each_had() -> None:
    def had(client: str) -> float:
        return {"a": 1.0, "b": 1.5, "c": 9.0}[client]

    assert split(10, {"a": 100}, had, 0.5) == {"a": 10}
    assert split(11, {"a": 100, "b": 100}, had, 0.5) == {"a": 6, "b": 5}
    assert split(11, {"a": 2, "b": 100}, had, 0.5) == {"a": 2, "b": 9}
    assert split(40, {"a": 100, "b": 100, "c": 100}, had, 0.5) == {"a": 19, "b": 18, "c": 3}
    assert split(500, {"a": 10, "b": 20}, had, 0.5) == {"a": 10, "b": 20}
    assert sum(split(7, {"a": 9, "b": 9, "c": 9}, lambda c: 0.0, 1e-9).values()) == 7
    assert split(0, {"a": 9, "b": 9}, had, 0.5) == {"a": 0, "b": 0}
    assert split(5, {"a": 9, "c": 9}, had, 1e-300)["a"] == 5


def test_a_prompt_that_ends_is_not_kept_waiting_by_others() -> None:
    assert ended_first({"a": 200, "b": 312}, {"a": 200, "b": 4000}) == {"a": 200, "b": 200}
    assert ended_first({"a": 5, "b": 507}, {"a": 5, "b": 4000}) == {"a": 5, "b": 64}
    assert ended_first({"a": 512}, {"a": 512}) == {"a": 512}
    assert ended_first({"a": 256, "b": 256}, {"a": 900, "b": 900}) == {"a": 256, "b": 256}


def test_a06_a_client_does_not_fill_the_queue_for_others() -> None:
    limits, request = SchedulerLimits(queue=10), GenerateRequest([1], 1, client=VICTIM)
    check(request, 10, limits, 32, 10, [HOSTILE] * 10)
    check(request, 14, limits, 32, 10, [HOSTILE] * 10 + [VICTIM] * 4)
    with pytest.raises(QueueFull):
        check(request, 15, limits, 32, 10, [HOSTILE] * 10 + [VICTIM] * 5)
    for client in (HOSTILE, ""):
        with pytest.raises(QueueFull):
            check(GenerateRequest([1], 1, client=client), 10, limits, 32, 10, [client] * 10)


@needs_null
def test_a06_the_queue_is_counted_with_those_on_their_way() -> None:
    engine = open_engine(512, 1)
    scheduler = Scheduler(engine, 1, SchedulerLimits(queue=4))
    for _ in range(4):
        scheduler.add(sequence(HOSTILE))
    scheduler.check(GenerateRequest([1], 1, client=VICTIM))
    with pytest.raises(RequestError, match="6 requests are waiting"):
        scheduler.check(GenerateRequest([1], 1, client=VICTIM), 2, [VICTIM, VICTIM])
    engine.close()


@needs_null
def test_a06_names_do_not_pile_up() -> None:
    """A client that gives each request another user, and is never idle."""
    engine = open_engine(512, 1)
    scheduler = Scheduler(engine, 1)
    stays = sequence(HOSTILE, "stays")
    scheduler.add(stays)
    for i in range(3 * KNOWN):
        one = sequence(HOSTILE, f"user {i}")
        scheduler.add(one)
        scheduler.shares.charge([one], [1.0])
        scheduler.waiting.remove(one)
        assert scheduler.shares.names <= 2 * KNOWN + NAMES
    scheduler.remove(stays)
    assert scheduler.shares.names == 0
    engine.close()


@needs_null
def test_priority_orders_the_requests_of_one_client() -> None:
    load = [Arrival(0.0, 50, 20, client="c", priority=p) for p in (3, 2, -7, 1)]
    engine = open_engine(512, 1)
    trace = run(engine, load)
    firsts = {a.priority: trace.tokens[i][0] for i, a in enumerate(load)}
    assert sorted(firsts, key=lambda p: firsts[p]) == [-7, 1, 2, 3]
    engine.close()


@needs_null
def test_every_client_has_a_row_in_every_step() -> None:
    load = [*many(15, 20, 400, every=0.0), Arrival(0.0, 20, 200, client=VICTIM)]
    engine = open_engine(4096, 16)
    trace = run(engine, load, whole=lambda a: a.client == VICTIM)
    assert max(trace.gaps([15])[30:]) <= 2 * (0.030 + 2 * 0.0015), "once steps have been timed"
    counts = [len(t) for i, t in trace.tokens.items() if i < 15]
    assert min(counts) > 100, "the others' rows take turns, and none stands still"
    engine.close()


def test_a_client_keeps_the_slots_that_its_weight_gives_it() -> None:
    def giving(slots: dict[str, int], light: float) -> str | None:
        return giver("light", slots, lambda c: 0.0, False, {"heavy": 3.0, "light": light}.__getitem__)

    assert giving({"heavy": 4}, 1.0) == "heavy"
    assert giving({"heavy": 3, "light": 1}, 1.0) is None
    assert giving({"heavy": 3, "light": 1}, 3.0) == "heavy"
    assert giving({"heavy": 6, "light": 1}, 1.0) is None
    assert giving({"heavy": 7, "light": 1}, 1.0) == "heavy"


@needs_null
@pytest.mark.parametrize("blocks", [0, 24])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0), (0.5, 1.0)])
def test_clients_get_tokens_by_weight(weights: tuple[float, float], blocks: int) -> None:
    """Of slots, of the cache and of prompts, while both have enough requests."""
    engine, rng = open_engine(512, 8, blocks=blocks), np.random.default_rng(0)
    scheduler, now = Scheduler(engine, 8, SchedulerLimits(queue=1000)), 0.0
    for client, weight in zip("ab", weights, strict=True):
        for _ in range(100):
            ids = [int(i) for i in rng.integers(0, tiny.VOCAB, 100)]
            scheduler.add(Sequence(GenerateRequest(ids, 60, client=client, weight=weight), 0.0))
    answered = {"a": 0, "b": 0}
    for _ in range(400):
        batch = scheduler.plan(now)
        tokens = engine.step(tuple(batch.values()))
        for seq, entry in batch.items():
            answered[seq.client] += entry.rows
        seconds = float(COST @ load_of(batch).row())
        now += seconds
        scheduler.done(batch, tokens, now, seconds)
        assert {s.client for s in scheduler.waiting} == {"a", "b"}
    assert scheduler.shares.had("a") == pytest.approx(scheduler.shares.had("b"), rel=0.1)
    assert answered["a"] / answered["b"] == pytest.approx(weights[0] / weights[1], rel=0.3)
    engine.close()
