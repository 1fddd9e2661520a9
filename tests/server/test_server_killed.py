"""kill -9 of the engine's process under load: streams are complete or end with a proper error, and the server
answers again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import joined, until

httpx = pytest.importorskip("httpx")
uvicorn = pytest.importorskip("uvicorn")

from serving_load import Mix, alone, crowd, key, questions  # noqa: E402
from serving_process import children  # noqa: E402

from satchel.cli.load.drive import Bounds, Driven, LoadTarget, drive  # noqa: E402
from satchel.cli.load.requests import LoadRequest  # noqa: E402
from satchel.runtime.api.options import Options  # noqa: E402
from satchel.server.settings import ServerSettings  # noqa: E402

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the process in /proc"),
]


@pytest.fixture
def killed(bundled_model: Path, serving_of: Callable[..., Any]) -> Iterator[tuple[LoadTarget, int]]:
    """A server, and its engine's process."""
    before = set(children(os.getpid()))
    options = Options(context=256, slots=8, worker="process")
    with serving_of([bundled_model], options, ServerSettings(port=0)) as url:
        server = LoadTarget(url, bundled_model.stem)
        alone(server, questions(0)[:1])  # loads the model
        engines = [pid for pid in set(children(os.getpid())) - before if b"worker" in command(pid)]
        assert len(engines) == 1
        yield server, engines[0]


def command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def under_fire(server: LoadTarget, requests: list[LoadRequest], engine: int) -> Driven:
    """Sends all requests at once, and kills the engine after the first piece of an answer."""

    def generated() -> float:
        lines = httpx.get(f"{server.url}/metrics").text.splitlines()
        found = (line for line in lines if line.startswith("satchel_generated_tokens_total"))
        return sum(float(line.split()[-1]) for line in found)

    before = generated()

    def shoot() -> None:
        until(lambda: generated() > before, "the first token")
        os.kill(engine, signal.SIGKILL)

    thread = threading.Thread(target=shoot)
    thread.start()
    driven = asyncio.run(drive(server, iter(requests), Bounds()))
    joined(thread, "the shot")
    return driven


def test_a_killed_engine_loses_no_stream_and_is_replaced(killed: tuple[LoadTarget, int]) -> None:
    server, engine = killed
    asked = questions(1)[:8]
    answers = alone(server, asked)
    crowded = crowd(asked, Mix(leave=0, wrong=0))
    driven = under_fire(server, [next(crowded) for _ in range(32)], engine)
    until(lambda: not Path(f"/proc/{engine}/task").exists(), "the end of the process is noticed")
    for outcome in driven.outcomes:
        came, answer = "".join(outcome.text), answers[key(outcome.request)]
        if outcome.error:  # an error event, or a 5xx with a body; never a broken connection
            assert outcome.error.startswith(("in the stream: ", "HTTP 5")), outcome.error
            assert answer.startswith(came)
        else:
            assert came == answer
    assert alone(server, asked) == answers
