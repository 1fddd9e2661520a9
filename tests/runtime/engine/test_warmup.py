"""Plans that are made before requests come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tiny
from waiting import until

from satchel.errors import DeviceError
from satchel.runtime.device.libraries import find_backend, libraries
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.service import Service
from satchel.runtime.engine.warmup import sizes, warm_up
from satchel.runtime.layers.arch import Cache

APART = {f.name for f in libraries() if not f.reason}
MADE = [(1, 1), (16, 1), (32, 1), (2, 2), (4, 4), (5, 5)]


@pytest.fixture(params=["cpu", "remote"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param not in APART:
        pytest.skip(f"{request.param} cannot run here")
    device = find_backend(request.param).open(threads=1)
    cache = Cache(context=80, slots=5, block=16, batch=32)
    made = tiny.engine("llama", tiny.weights("llama", "q8_0"), cache, device, batch=32)
    yield made
    made.close()


def test_the_plans_of_ordinary_requests_are_there_and_no_answer_makes_another(engine: Engine) -> None:
    assert list(sizes(engine)) == MADE
    service = Service(engine)
    warm_up(service)
    made = engine._programs
    until(lambda: len(made) == len(MADE), "the plans are not made")
    if engine.overlaps:
        assert all((p.second is not None) == (b.tokens == b.rows) for (b, _), p in made.items())
    assert len(list(service.submit(GenerateRequest([1, 2, 3] * 4, 5)))) == 5
    assert len(made) == len(MADE)
    service.close()


def test_without_memory_for_them_requests_go_on(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    tried, prepare = list[int](), Engine.prepare

    def full(self: Engine, tokens: int, rows: int) -> None:
        tried.append(tokens)
        if len(tried) > 2:
            raise DeviceError("no memory is left")
        prepare(self, tokens, rows)

    monkeypatch.setattr(Engine, "prepare", full)
    service = Service(engine)
    warm_up(service)
    until(lambda: len(tried) == 3, "the plans are not tried")
    assert len(list(service.submit(GenerateRequest([1, 2, 3] * 4, 5)))) == 5 and len(tried) == 3
    service.close()
