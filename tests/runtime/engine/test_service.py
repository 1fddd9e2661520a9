"""One engine thread serves threads and tasks, with the same tokens as one request at a time."""

import asyncio
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import tiny
from devices import needs
from waiting import until

from satchel.errors import DeviceError, RequestError
from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import (
    Engine,
)
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.service import Service
from satchel.runtime.layers.arch import Cache
from satchel.runtime.sampling import Sampling
from satchel.runtime.scheduler import SchedulerLimits

pytestmark = needs("cpu")


def open_engine(slots: int = 4, blocks: int = 0, batch: int = 64, context: int = 96) -> Engine:
    cache = Cache(context=context, slots=slots, block=16, blocks=blocks)
    return tiny.engine(
        "llama", tiny.weights("llama", "q8_0"), cache, find_backend("cpu").open(threads=2), batch=batch
    )


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service(open_engine())
    yield made
    made.close()
    made.engine.close()


def requests(count: int, seed: int = 0) -> list[GenerateRequest]:
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        ids = [int(t) for t in rng.integers(0, tiny.VOCAB, rng.integers(1, 50))]
        sampling = Sampling(temperature=0.9, seed=i) if i % 2 else Sampling(temperature=0, seed=0)
        found.append(GenerateRequest(ids, int(rng.integers(1, 40)), sampling))
    return found


def read(service: Service, request: GenerateRequest) -> list[int]:
    return list(service.submit(request))


def test_threads_and_tasks_get_what_each_would_get_alone(service: Service) -> None:
    wanted = requests(24)
    alone = [read(service, r) for r in wanted]
    assert [len(a) for a in alone] == [r.max_tokens for r in wanted]
    found: list[list[int]] = [[] for _ in wanted]

    def work(first: int) -> None:
        for i in range(first, len(wanted), 8):
            found[i] = read(service, wanted[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == alone

    async def tasks() -> list[list[int]]:
        async def one(request: GenerateRequest) -> list[int]:
            return [token async for token in service.submit(request)]

        return await asyncio.gather(*map(one, wanted))

    assert asyncio.run(tasks()) == alone
    service.engine.pages.check()


@pytest.mark.parametrize(("slots", "blocks", "batch"), [(1, 0, 64), (3, 6, 16), (4, 7, 64), (8, 0, 32)])
def test_tokens_do_not_depend_on_slots_memory_or_chunks(
    slots: int, blocks: int, batch: int, service: Service
) -> None:
    """With few blocks, sequences are preempted and resumed."""
    wanted = requests(16, seed=3)
    alone = [read(service, r) for r in wanted]
    other = Service(open_engine(slots, blocks, batch))
    try:
        handles = [other.submit(r) for r in wanted]
        assert [list(t) for t in handles] == alone
        if blocks:
            assert sum(t.seq.preempted for t in handles) > 0, "memory was never short: the test shows nothing"
        other.engine.pages.check()
        other.engine.pages.tree.clear()
        assert other.engine.pages.pool.free == other.engine.pages.pool.size
    finally:
        other.close()
        other.engine.close()


def test_a_beginning_is_computed_once(service: Service) -> None:
    ids = list(range(70))
    first, second, other = (service.submit(GenerateRequest(ids, 3, salt=s)) for s in ("", "", "b"))
    for t in (first, second, other):
        assert len(list(t)) == 3
    again = service.submit(GenerateRequest(ids, 3))
    list(again)
    assert (again.seq.cached, again.seq.miss.name) == (64, "NONE")
    assert service.submit(GenerateRequest(ids, 1, salt="c")).get() is not None


class Slow:
    """An engine whose steps wait for permission, so that a test decides what happens between them."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.leave, self.steps = engine, threading.Semaphore(0), 0
        self.real = engine.step
        engine.step = self.step  # type: ignore[method-assign]

    def step(self, entries: Sequence[BatchEntry]) -> list[int]:
        self.leave.acquire()
        self.steps += 1
        return self.real(entries)


def test_cancel_is_seen_after_the_step_at_hand_also_within_a_prompt() -> None:
    engine = open_engine(batch=8)
    slow, service = Slow(engine), Service(engine)
    handle = service.submit(GenerateRequest(list(range(60)), 5))
    slow.leave.release(2)
    until(lambda: slow.steps == 2, "two steps have begun")
    handle.cancel()
    slow.leave.release()
    assert handle.get() is None and handle.finish == "cancelled"
    assert slow.steps <= 3
    slow.leave.release(100)
    again = service.submit(GenerateRequest(list(range(60)), 1))
    assert len(list(again)) == 1 and again.seq.cached == 16, "what was read is kept"
    service.close()
    engine.close()


def test_deadlines_full_queues_and_prompts_that_never_fit_are_refused() -> None:
    engine = open_engine(slots=1, blocks=3)
    slow, service = Slow(engine), Service(engine, SchedulerLimits(queue=2))
    with pytest.raises(RequestError, match="4 blocks of KV cache; there are 3"):
        service.submit(GenerateRequest(list(range(60)), 1))
    running = service.submit(GenerateRequest([1, 2], 50))
    until(lambda: service.scheduler.running, "the first step")  # which waits for leave from here on
    late = service.submit(GenerateRequest([1, 2], 50, deadline=-1.0))  # on a clock that counts from 0
    service.submit(GenerateRequest([1], 1))
    with pytest.raises(RequestError, match="2 requests are waiting"):
        service.submit(GenerateRequest([1], 1))
    slow.leave.release(1000)
    assert late.get() is None and late.finish == "deadline"
    assert len(list(running)) == 47, "the pool holds 48 tokens"
    service.close()
    engine.close()


def test_a_device_that_fails_ends_every_request_with_its_error(service: Service) -> None:
    def fail(entries: Sequence[BatchEntry]) -> list[int]:
        raise DeviceError("the device was lost")

    service.engine.step = fail  # type: ignore[method-assign]
    handles = [service.submit(GenerateRequest([1], 3)) for _ in range(3)]
    for t in handles:
        with pytest.raises(DeviceError, match="lost"):
            t.get()


def test_after_close_nothing_is_taken_and_what_runs_is_cancelled() -> None:
    engine = open_engine()
    service = Service(engine)
    handle = service.submit(GenerateRequest([1], 80))
    service.close()
    rest = list(handle)
    assert handle.finish in ("cancelled", "length") and len(rest) <= 80
    with pytest.raises(RequestError, match="closed"):
        service.submit(GenerateRequest([1], 1))
    engine.close()


def test_a_call_waits_for_a_slot_that_is_free(service: Service) -> None:
    seen: list[int] = []
    handles = [service.submit(GenerateRequest([i], 30)) for i in range(8)]
    service.with_slot(seen.append)
    assert len(seen) == 1
    for t in handles:
        assert len(list(t)) == 30
    with pytest.raises(RequestError, match="wrong"):
        service.with_slot(lambda slot: (_ for _ in ()).throw(RequestError("wrong")))
