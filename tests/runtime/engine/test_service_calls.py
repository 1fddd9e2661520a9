"""A06 of the hostile requests: calls (embeddings, scores) of many threads do not add up between steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import tiny
from waiting import until

from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.engine.service import Service
from satchel.runtime.layers.arch import Cache
from satchel.runtime.scheduler import Request

pytestmark = pytest.mark.skipif(
    not any(f.name == "cpu" and not f.reason for f in libraries()), reason="no compiled backend is installed"
)


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
        assert len(list(service.submit(Request([1, 2, 3], 60)))) == 60
    finally:
        over.set()
        for asker in askers:
            asker.join(60)
    first, last = done.index("step"), len(done) - 1 - done[::-1].index("step")
    pairs = list(zip(done[first:last], done[first + 1 : last + 1], strict=True))
    assert ("call", "call") not in pairs
    assert ("call", "step") in pairs, "they do get on"


def test_a06_slots_that_calls_lease_do_not_keep_requests_out(service: Service) -> None:
    """Sixteen threads that want a slot again as soon as they gave one back, and one request."""
    over = threading.Event()

    def leases() -> None:
        while not over.is_set():
            service.with_slot(lambda slot: None)

    askers = [threading.Thread(target=leases) for _ in range(16)]
    for asker in askers:
        asker.start()
    try:
        for _ in range(5):
            assert len(list(service.submit(Request([1, 2, 3], 4)))) == 4
    finally:
        over.set()
        for asker in askers:
            asker.join(60)
