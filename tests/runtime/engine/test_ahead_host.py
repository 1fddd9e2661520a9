"""Launch-ahead with host-side sampling: the forward pass needs no token that the host reads, so only the
sampling waits. Answers stay the same, every row is in every step, and nothing is computed for a finished
request.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny

from satchel.errors import DeviceError, RequestError
from satchel.runtime.device.device import Exec
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import (
    Engine,
    Launched,
)
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.request_handle import End, RequestHandle
from satchel.runtime.engine.service import Service
from satchel.runtime.graph import Array
from satchel.runtime.layers.arch import Cache
from satchel.runtime.sampling import GREEDY, Sampling
from satchel.runtime.speculative import Speculation, Speculator

APART = {f.name for f in libraries() if not f.reason}
REAL = pytest.param("cuda", marks=pytest.mark.gpu)
LONG = 16  # tokens of an answer


def open_engine(backend: str, blocks: int = 0) -> Engine:
    if backend not in APART:
        pytest.skip(f"{backend} cannot run here")
    cache = Cache(context=80, slots=4, block=16, blocks=blocks, batch=32)
    device = find_backend(backend).open(threads=1, deterministic=True)
    return tiny.engine("llama", tiny.weights("llama", "q8_0"), cache, device, batch=32)


@pytest.fixture(scope="module", params=["remote", REAL])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = open_engine(request.param)
    assert made.overlaps
    yield made
    made.close()


@pytest.fixture
def service(engine: Engine) -> Iterator[Service]:
    made = Service(engine)
    yield made
    made.close()
    engine.pages.check()


class Odd:
    """A constraint of `most` tokens, odd and even ones in turn. fails: the token that it refuses."""

    def __init__(self, most: int, events: list[str] | None = None, fails: int = -1) -> None:
        self.most, self.events, self.fails = most, [] if events is None else events, fails
        self.taken: list[int] = []

    @property
    def finished(self) -> bool:
        return len(self.taken) == self.most

    def fill(self, bitmask: Array) -> None:
        self.events.append("fill")
        bitmask[:] = 0x55555555 if len(self.taken) % 2 else 0xAAAAAAAA

    def accept(self, token: int) -> None:
        self.events.append("accept")
        if len(self.taken) == self.fails:
            raise ValueError("not this one")
        assert token % 2 == (len(self.taken) + 1) % 2
        self.taken.append(token)

    def rollback(self, n: int) -> None:
        del self.taken[len(self.taken) - n :]


class Steps:
    """Records the launches: the entries of each step, and in `events` each half of one. ahead: those of
    steps launched before the tokens of the previous one were read.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine, self.events, self.launched = engine, list[str](), list[Sequence[BatchEntry]]()
        self.ahead: list[Sequence[BatchEntry]] = []
        self._launch, self._sampling = engine.launch, engine.launch_sampling

    def __enter__(self) -> Steps:
        def launch(entries: Sequence[BatchEntry], *, alone: bool = False) -> Launched:
            self.launched.append(entries)
            if not self.engine.idle():
                self.ahead.append(entries)
            self.events.append("launch")
            return self._launch(entries, alone=alone)

        def sampling(step: Launched, ended: Sequence[int] = ()) -> None:
            if step.host_sampled is not None and not step.host_sampled.sampled:
                self._sampling(step, ended)
                self.events.append("sampling")

        self.engine.launch, self.engine.launch_sampling = launch, sampling  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        del self.engine.launch, self.engine.launch_sampling


def together(service: Service, wanted: Sequence[GenerateRequest]) -> list[RequestHandle]:
    """Submits all of them before the next step."""
    handles: list[RequestHandle] = []
    service.call(lambda: handles.extend(service.submit(r) for r in wanted))
    return handles


def plain(count: int = 3, most: int = LONG) -> list[GenerateRequest]:
    """Greedy and seeded ones that the device samples alone."""
    kinds = (GREEDY, Sampling(temperature=1.3, top_k=0, seed=7), Sampling(repeat_penalty=1.4, seed=2))
    return [GenerateRequest([20 + i, i], most, kinds[i % 3]) for i in range(count)]


def constrained(constraint: Odd, most: int = LONG, sampling: Sampling = GREEDY) -> GenerateRequest:
    return GenerateRequest([99, 3, 4], most, sampling, constraint=constraint)


def even(past: Sequence[int], logits: Array) -> Array:
    """A logits processor that depends on the number of tokens."""
    logits[len(past) % 2 :: 2] = -np.inf
    return logits


HOST_SAMPLED: dict[str, dict[str, Any]] = {
    "constraint": {"sampling": Sampling(temperature=1.5, seed=3)},
    "logprobs": {"logprobs": 3},
    "processor": {"sampling": Sampling(seed=5), "logits_processors": (even,)},
    "processor and logprobs": {"logits_processors": (even,), "logprobs": 2},
    "bias": {"sampling": replace(GREEDY, logit_bias={17: 3.0})},
    "bad words": {"sampling": replace(GREEDY, bad_words=((5, 6), (9,))), "banned": frozenset({1})},
    "DRY": {"sampling": Sampling(dry_multiplier=2.0, dry_allowed_length=1, seed=4)},
    "mirostat": {"sampling": Sampling(mirostat=2, seed=6), "logprobs": 0},
    "min_tokens": {"sampling": replace(GREEDY, min_tokens=9)},
}


def host_sampled(kind: str, ids: Sequence[int], most: int, **fields: Any) -> GenerateRequest:
    """A request of this kind; a constraint is a fresh one each time."""
    constraint = Odd(LONG) if kind == "constraint" else None
    return GenerateRequest(ids, most, constraint=constraint, **HOST_SAMPLED[kind], **fields)


def answered(engine: Engine, each: Sequence[GenerateRequest], overlaps: bool) -> list[tuple[object, ...]]:
    """All together, through a service of their own: tokens, ends and log probabilities."""
    engine.overlaps, service = overlaps, Service(engine)
    try:
        return [(list(h), h.finish, h.logprobs) for h in together(service, each)]
    finally:
        service.close()
        engine.overlaps = True


@pytest.mark.parametrize("kind", HOST_SAMPLED)
def test_answers_are_those_of_one_step_at_a_time(engine: Engine, kind: str) -> None:
    """Alone without launch-ahead, then ahead with three others: every token, log-probability and finish
    reason.
    """

    def wanted() -> GenerateRequest:
        return host_sampled(kind, [99, 3, 4], LONG, stop_ids=frozenset(range(0, tiny.VOCAB, 40)))

    alone = [answered(engine, [r], overlaps=False)[0] for r in (*plain(), wanted())]
    with Steps(engine) as steps:
        assert answered(engine, [*plain(), wanted()], overlaps=True) == alone
    assert any(e.host_sampling for step in steps.ahead for e in step)


def test_the_host_code_of_gpus_runs_both_halves() -> None:
    """A step's outputs are read, and the next one's logits changed, while that is in flight."""
    engine = open_engine("emulated")

    def wanted() -> list[GenerateRequest]:
        kinds = ("constraint", "processor and logprobs", "logprobs")
        return plain(1, 6) + [host_sampled(kind, [90 + i], 6) for i, kind in enumerate(kinds)]

    with Steps(engine) as steps:
        found = [answered(engine, wanted(), overlaps) for overlaps in (False, True)]
    assert found[0] == found[1] and len(steps.ahead) >= 4
    engine.close()


def test_the_others_are_launched_ahead_while_the_grammar_waits(engine: Engine, service: Service) -> None:
    """A step's forward pass is launched before the constraint has the previous step's token; the bitmask is
    filled while it runs.
    """
    with Steps(engine) as steps:
        constraint = Odd(LONG, steps.events)
        handles = together(service, [*plain(), constrained(constraint)])
        assert [len(list(h)) for h in handles] == [LONG] * 4
    events = steps.events
    launches = [i for i, what in enumerate(events) if what == "launch"]
    accepts = [i for i, what in enumerate(events) if what == "accept"]
    assert len(launches) == len(accepts) == LONG
    before = [launch < accept for launch, accept in zip(launches[1:], accepts, strict=False)]
    assert before[1:] == [True] * (LONG - 2), "but for the first, whose program may have to be made"
    for launch, accept in zip(launches[2:], accepts[1:], strict=False):
        assert events[accept : accept + 3] == ["accept", "fill", "sampling"] and launch < accept


def test_nobody_is_left_out_of_a_step(engine: Engine, service: Service) -> None:
    """Four answers of equal length take as many steps as one: the grammar's row is in each."""
    with Steps(engine) as steps:
        for handle in together(service, [*plain(), constrained(Odd(LONG))]):
            list(handle)
    assert [len(step) for step in steps.launched] == [4] * LONG
    assert all(sum(e.host_sampling is not None for e in step) == 1 for step in steps.launched)
    assert len(steps.ahead) >= LONG - 2


def test_a_batch_of_such_rows_alone_is_launched_ahead(engine: Engine, service: Service) -> None:
    with Steps(engine) as steps:
        constraints = [Odd(LONG), Odd(LONG)]
        wanted = [replace(constrained(c), ids=[50 + i]) for i, c in enumerate(constraints)]
        assert [list(h) for h in together(service, wanted)] == [c.taken for c in constraints]
    assert len(steps.launched) == LONG and len(steps.ahead) >= LONG - 2


def test_after_its_end_nothing_is_asked_and_others_go_the_plain_way(engine: Engine, service: Service) -> None:
    """A step that was launched before the end was seen samples for the others only."""
    alone = [list(service.submit(r)) for r in plain(most=30)]
    with Steps(engine) as steps:
        constraint = Odd(6, steps.events)
        *others, held = together(service, [*plain(most=30), constrained(constraint, 30)])
        assert list(held) == constraint.taken and held.finish == "stop" and len(constraint.taken) == 6
        assert [list(h) for h in others] == alone
    assert steps.events.count("fill") == steps.events.count("accept") == 6
    waiting = [any(e.host_sampling for e in step) for step in steps.launched]
    assert waiting == [True] * 7 + [False] * (len(waiting) - 7)
    assert steps.launched[10:] == steps.ahead[-len(steps.launched[10:]) :], "ahead again"


@pytest.mark.parametrize("how", ["cancel", "stop", "accept", "processor"])
def test_one_that_ends_early_leaves_the_others_as_they_are(
    engine: Engine, service: Service, how: str
) -> None:
    alone = [list(service.submit(r)) for r in plain(most=30)]
    with Steps(engine) as steps:
        constraint = Odd(40, steps.events, fails=4 if how == "accept" else -1)
        request = constrained(constraint, 40)

        def broken(past: Sequence[int], logits: Array) -> Array:
            steps.events.append("processor")
            return logits[: len(logits) - (len(past) == 8)]

        if how == "stop":
            sampled = list(service.submit(replace(request, max_tokens=5)))
            constraint.taken.clear()
            steps.events.clear()
            request = replace(request, stop_ids=frozenset(sampled[4:]))
        if how == "processor":
            request = replace(request, constraint=None, logits_processors=(broken,))
        *others, held = together(service, [*plain(most=30), request])
        if how in ("accept", "processor"):
            with pytest.raises(RequestError, match="failed"):
                list(held)
        elif how == "cancel":
            assert held.get() is not None
            held.cancel()
            list(held)
        else:
            assert list(held) == sampled and held.finish == "stop"
        assert [list(h) for h in others] == alone
    asked = {"processor": 6, "accept": 5, "stop": 5, "cancel": len(constraint.taken)}
    assert steps.events.count("processor" if how == "processor" else "fill") == asked[how]
    assert len(list(service.submit(GenerateRequest([1], 3)))) == 3


def test_few_blocks_make_somebody_give_way() -> None:
    engine = open_engine("remote", blocks=6)
    plain_ones = plain(2, 40)

    def wanted() -> list[GenerateRequest]:
        return [*plain_ones, constrained(Odd(40), 40, Sampling(temperature=1, seed=8))]

    alone = []
    for i in range(3):
        service = Service(engine)
        alone.append(list(service.submit(wanted()[i])))
        service.close()
    service = Service(engine)
    with Steps(engine) as steps:
        handles = together(service, wanted())
        assert [list(h) for h in handles] == alone
    assert steps.ahead and sum(h.seq.preempted for h in handles)
    service.close()
    engine.pages.check()
    engine.close()


@pytest.mark.parametrize("half", ["launch", "launch_sampling", "collect"])
def test_a_device_that_fails_in_either_half_ends_everybody_once(engine: Engine, half: str) -> None:
    """No request stays running, and the next ones succeed."""
    calls, inner = iter(range(1000)), getattr(engine, half)

    def fail(*args: object, **how: object) -> object:
        failing = next(calls) == 4
        # Of a step that fails while it is waited for, nothing is under way any more.
        found = inner(*args, **how) if half == "collect" or not failing else None
        if failing:
            raise DeviceError("the card is gone")
        return found

    service, constraint = Service(engine), Odd(40)
    try:
        alone = list(service.submit(plain(1)[0]))
        setattr(engine, half, fail)
        for handle in together(service, [*plain(2, 40), constrained(constraint, 40)]):
            with pytest.raises(DeviceError, match="card is gone"):
                list(handle)
        delattr(engine, half)
        assert list(service.submit(plain(1)[0])) == alone
        with Steps(engine) as steps:
            assert [len(list(h)) for h in together(service, plain(4))] == [LONG] * 4
        assert steps.ahead, "both programs of a bucket are free again"
        assert len(list(service.submit(constrained(Odd(LONG))))) == LONG
        service.call(engine.pages.check)
    finally:
        service.close()


def test_drafts_of_rows_with_biases_are_verified_as_ever(engine: Engine) -> None:
    """With a speculator no step is launched ahead, and one verifies several tokens."""
    sampling = replace(GREEDY, logit_bias={17: 3.0})
    asked = GenerateRequest([4, 5, 6] * 6, 30, sampling)
    service = Service(engine)
    alone = list(service.submit(asked))
    service.close()
    service = Service(engine, speculator=Speculator(Speculation(lookup=True)))
    with Steps(engine) as steps:
        assert list(service.submit(replace(asked, draft=4))) == alone
    assert not steps.ahead and 0 < len(steps.launched) < len(alone)
    service.close()


def test_each_half_of_a_step_sends_what_it_reads(
    engine: Engine, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forward pass sends neither bitmasks nor edits, which are most of the step block. The sampling sends
    the bitmasks up to the last row that has one, and edits where a row has some.
    """
    sent: list[int] = []
    run = Exec.run
    monkeypatch.setattr(Exec, "run", lambda self, block, size: (sent.append(size), run(self, block, size))[1])
    program = engine.program(2, 2, "host_sampling")
    sizes = {f.name: (f.offset, f.size) for f in program.plan.fields}
    start, size = sizes["token_bitmask"]
    assert max(sizes.values()) == sizes["edits"] and sizes["edits"][0] >= start + size

    for others in (0, 1):
        sent.clear()
        bitmask_end = start + size // 2 * (others + 1)
        *_, held = together(service, [*plain(others), constrained(Odd(LONG))])
        assert len(list(held)) == LONG
        one = engine.program(1 + others, 1 + others, "host_sampling")
        ends = {f.name: f.offset + f.size for f in one.plan.fields}
        wanted = {ends["table"], bitmask_end if others else ends["token_bitmask"]}
        assert set(sent[-2 * LONG + 4 :]) == wanted
    sent.clear()
    biased = GenerateRequest([99, 3, 4], LONG, replace(GREEDY, logit_bias={5: 1.0}))
    assert len(list(service.submit(biased))) == LONG
    one = engine.program(1, 1, "host_sampling")
    assert one.plan.block_bytes - max(sent) < one.plan.fields[-1].size
    assert one.end_of("edits", 1) in sent


def test_masks_are_filled_by_the_thread_that_launched_the_forward_pass(
    engine: Engine, service: Service
) -> None:
    """The device computes meanwhile, so another thread would gain nothing and cost its wake-up."""
    assert len(list(service.submit(constrained(Odd(LONG))))) == LONG  # a plan that is not made yet waits
    threads: list[str] = []

    class Told(Odd):
        def fill(self, bitmask: Array) -> None:
            threads.append(threading.current_thread().name)
            super().fill(bitmask)

    with Steps(engine) as steps:
        held = service.submit(constrained(Told(LONG, steps.events)))
        assert len(list(held)) == LONG
    assert set(threads) == {"satchel-engine"}
    # Step k + 1's forward pass is launched before step k's token is accepted, its mask filled after that.
    fills = [at for at, event in enumerate(steps.events) if event == "fill"]
    launches = [at for at, event in enumerate(steps.events) if event == "launch"]
    assert len(fills) == LONG and all(launch < fill for launch, fill in zip(launches, fills, strict=True))
    assert all(steps.events[at - 1] == "accept" for at in fills[1:])


def test_rows_whose_mask_never_changes_wait_for_nothing(
    engine: Engine, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They sample what they do where the host looks at each token, but it gets plain tokens."""
    (asked,) = plain(1)
    free = list(service.submit(asked))
    banned = replace(asked, banned=frozenset(free[3:5]))
    wanted = list(service.submit(replace(banned, logprobs=0)))
    assert wanted != free and not set(wanted) & banned.banned
    came, put = list[object](), RequestHandle.put

    def noted(self: RequestHandle, item: Any) -> None:
        came.append(item)
        put(self, item)

    monkeypatch.setattr(RequestHandle, "put", noted)
    with Steps(engine) as steps:
        handles = together(service, [banned, replace(asked, ids=[77])])
        assert list(handles[0]) == wanted
        list(handles[1])
    assert all(isinstance(item, int) for item in came if not isinstance(item, End))
    assert len(steps.ahead) >= LONG - 2
