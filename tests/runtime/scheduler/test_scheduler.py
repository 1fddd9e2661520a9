"""Policies on their own, and a recorded load on the null backend under a simulated clock."""

from dataclasses import replace

import numpy as np
import pytest
from devices import needs
from simulate import Arrival, open_engine, recorded, run

from satchel.errors import RequestError
from satchel.runtime.engine.batch_entry import LAST
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.kv import common
from satchel.runtime.scheduler import Scheduler, SchedulerLimits, Sequence
from satchel.runtime.scheduler.fair import Fair
from satchel.runtime.scheduler.steptime import Load, StepTime
from satchel.runtime.scheduler.urgency import level

needs_null = needs("null")


@needs_null
def test_beside_a_prompt_of_100k_tokens_nobody_waits_twice_as_long() -> None:
    users = [Arrival(0.0, 50, 900, f"u{i}") for i in range(4)]
    large = Arrival(1.0, 100_000, 4, "large")
    alone = run(open_engine(110_000, 5, blocks=4000), users).gaps()
    both = run(open_engine(110_000, 5, blocks=4000), [*users, large])
    before, beside = np.percentile(alone, 99), np.percentile(both.gaps(range(4)), 99)
    print(f"99 % of tokens within {1e3 * before:.1f} ms alone, {1e3 * beside:.1f} ms beside the prompt")
    assert beside <= 2 * before
    assert len(both.tokens[4]) == 4, "the prompt itself got its answer"


@needs_null
def test_continuous_batching_beats_static_groups_on_the_recorded_load() -> None:
    dense = [Arrival(a.at * 0.1, a.prompt, a.answer, a.user) for a in recorded()]
    own, groups = (run(open_engine(4096, 16), dense, static=n).end for n in (0, 16))
    print(f"continuous batching: {own:.0f} s, groups of 16: {groups:.0f} s, {groups / own:.2f} times as long")
    assert groups > 1.15 * own


@needs_null
def test_a_user_with_many_requests_does_not_starve_one_with_few() -> None:
    """Twenty long requests of one user stand before two of another; slots are the bottleneck."""
    greedy = [Arrival(0.0, 200, 100, "greedy") for _ in range(20)]
    small = [Arrival(0.1, 200, 100, "small") for _ in range(2)]
    trace = run(open_engine(512, 2), [*greedy, *small])
    ends = sorted((times[-1], i) for i, times in trace.tokens.items())
    order = [i for _, i in ends]
    assert max(order.index(20), order.index(21)) < 6, order


def sequence(priority: int = 0, arrived: float = 0.0, user: str = "") -> Sequence:
    return Sequence(GenerateRequest([1, 2, 3], 5, priority=priority, user=user), arrived)


def test_waiting_makes_a_request_more_urgent() -> None:
    late, early = sequence(priority=0, arrived=100.0), sequence(priority=3, arrived=0.0)
    assert level(late, 100.0, 10.0) == 0
    assert level(early, 0.0, 10.0) == 3 and level(early, 29.9, 10.0) == 1 and level(early, 100.0, 10.0) == -7


def test_users_share_by_weight_and_gain_nothing_by_staying_away() -> None:
    fair, given = Fair(), {"a": 0, "b": 0}
    for user in given:
        fair.arrive(user)
    for _ in range(300):
        user = min(given, key=fair.virtual_time)
        fair.charge(user, 10, {"a": 1.0, "b": 2.0}[user])
        given[user] += 10
    assert given["b"] == pytest.approx(2 * given["a"], rel=0.02)
    fair.arrive("c")
    assert fair.virtual_time("c") >= min(fair.virtual_time("a"), fair.virtual_time("b")) - 10
    fair.forget({"a"})
    assert fair.virtual_time("nobody") <= fair.virtual_time("a") + 10


@pytest.mark.parametrize("truth", [[0.03, 0.002, 0.0014, 3e-8], [0.2, 0.01, 0.005, 1e-7]])
def test_step_times_are_learned_from_noisy_steps(truth: list[float]) -> None:
    rng, model = np.random.default_rng(0), StepTime()
    for _ in range(200):
        mixed = int(rng.integers(0, 2) * rng.integers(0, 512))
        load = Load(int(rng.integers(0, 9)), mixed, int(rng.integers(0, 20_000)))
        model.learn(load, float(np.dot(truth, load.row())) * rng.lognormal(0, 0.1))
    for load in (Load(1, 0, 100), Load(8, 0, 8000), Load(4, 64, 4000), Load(0, 512, 0)):
        assert model.seconds(load) == pytest.approx(float(np.dot(truth, load.row())), rel=0.15)
    room = model.prompt_tokens(4, 1000, 0.3, 512)
    assert model.seconds(Load(4, room, 1000)) <= 0.3 < model.seconds(Load(4, room + 1, 1000))
    assert model.prompt_tokens(4, 1000, 0.0, 512) == 0


def test_the_rows_of_a_sequence_in_a_step() -> None:
    """A part of its prompt samples nothing. Its last token and each draft token after it sample one."""
    seq = Sequence(GenerateRequest([1, 2, 3, 4], 9, adapter_scales=(0.5,)), 0.0, slot=2)
    part = seq.entry(3)
    assert (part.ids, part.num_tokens, part.rows, part.adapter_scales) == ((1, 2, 3), 3, 0, (0.5,))
    seq.num_computed_tokens = 3
    last = seq.entry(1, (7, 8))
    assert (last.slot, last.ids, last.rows, last.speculated) == (2, (4, 7, 8), 3, True)
    assert (last.num_tokens, last.draft_tokens) == (1, (7, 8))
    following = seq.next_entry()
    assert (following.ids, following.rows, following.draft_tokens) == ((LAST,), 1, ())
    assert not following.speculated and following.past is seq.ids


@needs_null
def test_what_can_never_run_is_refused_and_what_cannot_run_now_waits() -> None:
    scheduler = Scheduler(open_engine(4096, 4, blocks=4), 4, SchedulerLimits(queue=2))
    with pytest.raises(RequestError, match="5 blocks of KV cache; there are 4"):
        scheduler.check(GenerateRequest([0] * 128, 1))
    with pytest.raises(RequestError, match="2 requests are waiting"):
        scheduler.check(GenerateRequest([0], 1), coming=2)
    for _ in range(2):
        scheduler.add(Sequence(GenerateRequest([0] * 70, 1), 0.0))
    assert [entry.num_tokens for entry in scheduler.plan(0.0).values()] == [70]
    assert len(scheduler.waiting) == 1 and len(scheduler.running) == 1


@needs_null
@pytest.mark.parametrize(("salts", "computed"), [(("", ""), 1008), (("a", "b"), 2000)])
def test_prompts_that_begin_alike_and_come_together_are_computed_once(
    salts: tuple[str, str], computed: int
) -> None:
    engine = open_engine(2048, 2)
    scheduler, fed = Scheduler(engine, 2), 0
    for n, salt in enumerate(salts):
        scheduler.add(Sequence(GenerateRequest([*range(992), *[n + 1] * 8], 1, salt=salt), 0.0))
    while batch := scheduler.plan(0.0):
        fed += sum(entry.num_tokens for entry in batch.values())
        tokens = engine.step([replace(entry, sampling=None) for entry in batch.values()])
        scheduler.done(batch, tokens or [0] * len(batch), 0.0, 0.01)
    assert fed == computed
    engine.close()


@needs_null
def test_whoever_is_waited_for_may_leave() -> None:
    engine = open_engine(2048, 2, batch=128)
    scheduler = Scheduler(engine, 2)
    first, second = (Sequence(GenerateRequest([*range(250), n, n], 1), 0.0) for n in (1, 2))
    scheduler.add(first)
    scheduler.add(second)
    assert list(scheduler.plan(0.0)) == [first] and scheduler.waiting == [second]
    scheduler.remove(first)
    assert list(scheduler.plan(0.0)) == [second]
    engine.close()


def test_the_longest_common_beginning() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        a, b = ([int(t) for t in rng.integers(0, 2, rng.integers(0, 20))] for _ in range(2))
        wanted = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        assert common(a, b) == wanted


@needs_null
def test_a_request_that_may_crash_runs_alone_until_it_has_proved_itself() -> None:
    """Its prompt too; the others go on in every second step, and later all run together."""
    scheduler = Scheduler(engine := open_engine(256, 3), 3)
    requests = [GenerateRequest([1 + n, 2, 3], 9, alone_until=2 if n == 0 else 0) for n in range(3)]
    suspect, *others = (Sequence(request, 0.0) for request in requests)
    for seq in (suspect, *others):
        scheduler.add(seq)
    steps: list[set[Sequence]] = []
    while suspect.generated < 4:
        batch = scheduler.plan(0.0)
        steps.append({*batch})
        scheduler.done(batch, engine.step(list(batch.values())), 0.0, 0.01)
    alone = [at for at, step in enumerate(steps) if suspect in step][:2]
    assert all(steps[at] == {suspect} for at in alone) and alone[1] - alone[0] == 2
    assert all(step == {*others} for at, step in enumerate(steps[: alone[1]]) if at not in alone)
    assert all(step == {suspect, *others} for step in steps[alone[1] + 1 :][-2:])
