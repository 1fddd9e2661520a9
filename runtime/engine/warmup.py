"""Makes the plans of ordinary requests before requests come: making one takes tens of milliseconds, which the
first request of its kind would wait for.

Ordinary are prompts of up to PROMPT tokens that run alone, and steps in which 1, 2, 4 ... sequences decode.
Steps of other sizes get their plan with the first of them. Where the device has memory of its own the plans
are made before the model is ready; on the host, whose processors also load models and serve, one by one
while the engine has nothing else to do, so that no start takes longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from satchel.errors import DeviceError
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.service import Service
from satchel.runtime.log import LOG

PROMPT = 512  # tokens of the longest prompt
SHORT = 16  # tokens of the shortest


def sizes(engine: Engine) -> Iterator[tuple[int, int]]:
    """Tokens and sampled rows of the steps, the commonest first."""
    yield 1, 1
    most = min(PROMPT, engine.batch)
    tokens = SHORT
    while tokens < 2 * most:
        yield min(tokens, most), 1
        tokens *= 2
    rows, most = 2, min(engine.cache.slots, engine.batch)
    while rows < 2 * most:
        yield min(rows, most), min(rows, most)
        rows *= 2


def warm_up(service: Service) -> None:
    """Makes the plans. A device without memory for them is no failure: requests then make those they need."""
    engine = service.engine
    works = [partial(engine.prepare, *size) for size in sizes(engine)]
    if not engine.overlaps:
        service.when_idle(works)
        return
    try:
        for work in works:
            service.ask(work)
    except DeviceError as error:
        LOG.warning("plans are made when requests need them: %s", error)
