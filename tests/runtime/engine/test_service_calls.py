"""A06 of the hostile requests: calls (embeddings, scores) of many threads do not pile up between steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count

import pytest
import tiny
from devices import needs
from waiting import until

from satchel.runtime.device.libraries import find_backend
from satchel.runtime.engine.cancel_scope import CancelScope, current_scope
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.service import Service
from satchel.runtime.layers.arch import Cache

pytestmark = needs("cpu")


@pytest.fixture
def service() -> Iterator[Service]:
    cache = Cache(context=256, slots=2, block=16)
    engine = tiny.engine("llama", tiny.weights("llama", "q8_0"), cache, find_backend("cpu").open(threads=1))
    made = Service(engine)
    yield made
    made.close()
    engine.close()


def test_a06_one_call_between_two_steps_however_many_ask(service: Service) -> None:
    done: list[str] = []
    over = threading.Event()

    def asks() -> None:
        while not over.is_set():
            service.ask(lambda: done.append("call"))

    askers = [threading.Thread(target=asks) for _ in range(8)]
    for asker in askers:
        asker.start()
    try:
        until(lambda: "call" in done, "the first call")
        service.watch = lambda work: done.append("step")
        assert len(list(service.submit(GenerateRequest([1, 2, 3], 60)))) == 60
    finally:
        over.set()
        for asker in askers:
            asker.join(60)
    first, last = done.index("step"), len(done) - 1 - done[::-1].index("step")
    pairs = list(zip(done[first:last], done[first + 1 : last + 1], strict=True))
    assert ("call", "call") not in pairs
    assert ("call", "step") in pairs, "they do get on"


def test_a_thread_that_has_ended_is_trouble(service: Service) -> None:
    assert service.trouble == ""
    service.close()
    assert service.trouble == "the engine thread has ended"


def test_a06_slots_that_calls_lease_do_not_keep_requests_out(service: Service) -> None:
    """Sixteen threads that lease a slot again at once, and one request."""
    over = threading.Event()

    def leases() -> None:
        while not over.is_set():
            service.with_slot(lambda slot: None)

    askers = [threading.Thread(target=leases) for _ in range(16)]
    for asker in askers:
        asker.start()
    try:
        for _ in range(5):
            assert len(list(service.submit(GenerateRequest([1, 2, 3], 4)))) == 4
    finally:
        over.set()
        for asker in askers:
            asker.join(60)


@pytest.mark.parametrize(
    ("calls", "order"),
    [
        ([("a", 1.0, 4), ("b", 1.0, 1)], "abaaa"),
        ([("a", 1.0, 3), ("b", 3.0, 3)], "abbbaa"),
        ([("", 1.0, 3), ("", 1.0, 1)], ["", "", "", ""]),
    ],
)
def test_clients_share_the_pieces_of_calls_by_weight(
    service: Service, calls: list[tuple[str, float, int]], order: Sequence[str]
) -> None:
    """However many calls one of them has waiting; each piece takes a second of a clock of its own."""
    done: list[str] = []
    runs, go, seconds = threading.Event(), threading.Event(), count()
    service.clock = lambda: float(next(seconds))

    def first() -> None:
        runs.set()
        go.wait(60)

    askers = [threading.Thread(target=service.ask, args=(first,))]
    askers[0].start()
    until(runs.is_set, "the first call runs")
    for client, weight, number in calls:
        for _ in range(number):
            asks = partial(service.ask, partial(done.append, client))
            askers.append(threading.Thread(target=CancelScope(0, client, weight).run, args=(asks,)))
            before = len(service._calls)
            askers[-1].start()
            until(lambda before=before: len(service._calls) > before, "the call waits")
    go.set()
    for asker in askers:
        asker.join(60)
    assert done == list(order)


def test_several_threads_work_in_one_scope() -> None:
    scope, inside, seen = CancelScope(client="a"), threading.Barrier(2, timeout=60), list[str]()

    def work() -> None:
        inside.wait()
        seen.append(current_scope().client)
        inside.wait()

    threads = [threading.Thread(target=scope.run, args=(work,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == ["a", "a"] and current_scope().client == ""


def test_slots_go_to_the_client_that_had_the_least_of_calls(service: Service) -> None:
    """Where calls of two clients wait for one, the other had engine time already."""
    seconds, got = count(), list[str]()
    service.clock = lambda: float(next(seconds))
    CancelScope(0, "a").run(lambda: service.ask(lambda: None))
    held = service.acquire_slots(2)

    def leases(client: str) -> None:
        (slot,) = service.acquire_slots(1)
        got.append(client)
        service.release_slots([slot])

    askers = []
    for number, client in enumerate("ab"):
        scope = CancelScope(0, client)
        askers.append(threading.Thread(target=scope.run, args=(partial(leases, client),)))
        askers[-1].start()
        until(lambda number=number: len(service._slot_requests) > number, "the call waits for a slot")
    service.release_slots(held[:1])
    for asker in askers:
        asker.join(60)
    service.release_slots(held[1:])
    assert got == ["b", "a"]
