"""Resources that must not grow with client input: descriptors, log lines, labels of metrics. Rows A04 and A10
of the hostile requests.
"""

from __future__ import annotations

import asyncio
import errno
import io
import json
import logging
import re
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from waiting import until

pytest.importorskip("fastapi")

from house import House, serving_house
from serving_process import Process

from satchel.errors import RequestError
from satchel.runtime.engine.stats import BOUNDS, Distribution, EngineStats
from satchel.server import accept, descriptors, log, metrics
from satchel.server.addresses import Proxies
from satchel.server.connections import ConnectionLimits, Connections
from satchel.server.metrics import FINISHES, Counts, labelled, rendered
from satchel.server.settings import ServerSettings
from satchel.server.watch import METHODS, OTHER, HttpTraffic

MOST_MODELS = 9  # in these tests


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with serving_house(ServerSettings(port=0, api_keys=())) as found:
        yield found


# descriptors


@pytest.mark.parametrize(
    ("limit", "wanted", "models", "most"),
    [(None, 1024, 1, 1024), (65536, 1024, 1, 1024), (1024, 1024, 1, 948), (128, 1024, 1, 52),
     (128, 1024, 500, 28), (128, 8, 1, 8)],
)  # fmt: skip
def test_a04_connections_stay_below_the_limit(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, wanted: int, models: int, most: int
) -> None:
    monkeypatch.setattr(descriptors, "in_use", lambda: 20)
    assert descriptors.connections_below(limit, wanted, 16, models) == most


def test_a04_a_limit_without_room_is_one_line() -> None:
    with pytest.raises(RequestError, match=r"limit of open files is 24.*raise it to \d+ or more"):
        descriptors.connections_below(24, 1024, 16, 1)


def test_a04_the_soft_limit_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    assert descriptors.in_use() >= 3
    for soft, hard, now in ((128, 4096, 4096), (128, 128, 128), (256, 1 << 30, descriptors.ENOUGH)):
        found: list[tuple[int, int]] = []
        monkeypatch.setattr(resource, "getrlimit", lambda _, pair=(soft, hard): pair)
        monkeypatch.setattr(resource, "setrlimit", lambda _, pair, found=found: found.append(pair))
        assert descriptors.raised_limit() == now
        assert found == ([(now, hard)] if now != soft else [])

    def refused(*_: object) -> None:
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (128, 4096))
    monkeypatch.setattr(resource, "setrlimit", refused)
    assert descriptors.raised_limit() == 128


def test_a04_without_descriptors_the_loop_waits_and_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """One attempt, one log line, one pause; waiting clients are accepted when a descriptor is free again."""
    attempts, pauses, given = [0], [], []

    class Idle:
        def rank(self, now: float) -> tuple[int, float]:
            return 0, 0.0

        def check(self, now: float) -> None: ...

        def cut(self, reason: str) -> None:
            given.append(reason)

    async def main() -> None:
        loop, connections = asyncio.get_running_loop(), Connections(ConnectionLimits(10, 10))
        for _ in range(3):
            connections.admit("127.0.0.1").holder = Idle()
        accepting, sleeping = loop.sock_accept, asyncio.sleep

        async def sock_accept(bound: socket.socket) -> Any:
            attempts[0] += 1
            if attempts[0] <= 5:
                raise OSError(errno.EMFILE, "Too many open files")
            return await accepting(bound)

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            await sleeping(0)

        monkeypatch.setattr(loop, "sock_accept", sock_accept)
        monkeypatch.setattr(accept, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
        made = loop.create_future()
        bound = socket.create_server(("127.0.0.1", 0))

        def make(seat: object) -> asyncio.Protocol:
            made.set_result(seat)
            return asyncio.Protocol()

        listener = accept.Listener(bound, connections, Proxies(), make, None, 10)
        with socket.create_connection(bound.getsockname()):
            await asyncio.wait_for(made, 60)
        listener.close()
        await listener.wait_closed()
        bound.close()

    asyncio.run(main())
    assert attempts[0] in (6, 7) and given == ["descriptors"] * 3
    assert pauses[:5] == [0.05, 0.1, 0.2, 0.4, 0.8]


@pytest.mark.model
@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux alone")
def test_a04_a_server_with_few_descriptors_answers_and_says_little() -> None:
    command = f"ulimit -n 128 && exec '{sys.executable}' -m satchel serve --port 0"
    with Process(["sh", "-c", command]) as server:
        server.ready("/readyz")
        address = ("127.0.0.1", httpx.URL(server.url).port or 0)
        held = [socket.create_connection(address) for _ in range(300)]
        for path in ("/v1/models", "/health"):
            assert httpx.get(server.url + path, timeout=60).status_code == 200
        assert len(list(Path(f"/proc/{server.child.pid}/fd").iterdir())) < 128
        assert len(server.said) < 40 and any("limit of open files is 128" in line for line in server.said)
        for wire in held:
            wire.close()


# the log


class Written:
    """A logger of its own with a simulated clock."""

    def __init__(self, formatter: logging.Formatter | None = None) -> None:
        self.now, self.stream = 0.0, io.StringIO()
        self.handler = log.Limited(self.stream, lambda: self.now)
        self.handler.setFormatter(formatter or log.TextFormatter("%(levelname)s %(message)s"))
        self.log = logging.Logger("test")
        self.log.addHandler(self.handler)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


def test_a04_a_repeated_line_is_counted() -> None:
    written = Written()
    for _ in range(20_000):
        written.log.error("no descriptor: %s", "Too many open files")
    assert written.lines == ["ERROR no descriptor: Too many open files"] * log.SAME
    written.now = log.WINDOW
    written.log.error("other")
    left = 20_000 - log.SAME
    told = f"ERROR no descriptor: Too many open files (repeated {left:,} times in 10 s)"
    assert written.lines[log.SAME :] == [told, "ERROR other"]
    written.log.error("no descriptor: %s", "Too many open files")
    assert len(written.lines) == log.SAME + 3  # a window of its own
    written.handler.close()


def test_a04_lines_that_differ_in_what_a_client_sent_are_counted_by_their_place() -> None:
    written = Written()
    for i in range(5000):
        written.log.warning(f"no route {i}")
    assert len(written.lines) == log.ORIGIN
    for i in range(3):
        written.log.warning("elsewhere %d", i)
    assert len(written.lines) == log.ORIGIN + 3
    assert len(written.handler._counts) <= log.KEPT + 2
    written.handler.close()  # as at the program's end
    assert f"(repeated {5000 - log.ORIGIN:,} times" in written.lines[-1]


def test_a04_a_window_that_ends_in_silence_is_told_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "WINDOW", 0.05)
    written = Written()
    for _ in range(log.SAME + 5):
        written.log.error("again")
    written.now = 1.0
    until(lambda: "repeated 5 times" in written.stream.getvalue(), "the timer's line")
    written.handler.close()


def test_a04_answers_of_models_are_all_logged_and_refusals_are_not() -> None:
    written = Written(log.JsonFormatter())
    answered, refused = {"model": "m", "seconds": 1.0, "request_id": "r"}, {"status": 401}
    for _ in range(100):
        written.log.error("POST 200", extra={"facts": answered})
        written.log.error("POST 401", extra={"facts": refused})
    found = Counter(json.loads(line)["message"] for line in written.lines)
    assert found == {"POST 200": 100, "POST 401": log.SAME}
    written.handler.close()


def test_a04_a_message_is_one_line_of_bounded_length() -> None:
    for formatter in (log.JsonFormatter(), log.TextFormatter("%(message)s")):
        written = Written(formatter)
        written.log.error("GET %s", "/\n2026-01-01 INFO all is well\r\u2028\x1b[2J" + "a" * 100_000)
        assert len(written.lines) == 1 and len(written.lines[0]) < log.LONGEST + 200
        assert "\x1b" not in written.lines[0] and "100,0" in written.lines[0]
        written.handler.close()


def test_a04_every_logger_goes_through_it() -> None:
    root = logging.getLogger()
    names = ("satchel", "uvicorn")
    kept = root.handlers, root.level
    own = [(n, logging.getLogger(n).handlers, logging.getLogger(n).level) for n in names]
    try:
        log.set_up("info", False)
        assert [type(h) for h in root.handlers] == [log.Limited]
        for name in ("satchel.server", "satchel", "uvicorn.error", "asyncio", "py.warnings", "any.library"):
            logger, handlers = logging.getLogger(name), []
            while logger is not None:
                handlers += logger.handlers
                logger = logger.parent if logger.propagate else None  # type: ignore[assignment]
            assert [h for h in handlers if not isinstance(h, logging.NullHandler)] == root.handlers, name
        assert logging.getLogger("satchel.server").isEnabledFor(logging.INFO)
        assert not logging.getLogger("any.library").isEnabledFor(logging.INFO)
    finally:
        logging.captureWarnings(False)
        root.handlers = kept[0]
        root.setLevel(kept[1])
        for name, handlers, level in own:
            logging.getLogger(name).handlers = handlers
            logging.getLogger(name).setLevel(level)


# labels


def labels(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, value in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', text):
        found.setdefault(name, set()).add(value)
    return found


def test_a10_what_clients_make_up_is_no_label(house: House) -> None:
    def told_after(round: int) -> str:
        with httpx.Client(timeout=60) as client:
            for i in range(round, round + 6):
                pairs = ((f"M{i}", "/v1/models"), ("GET", f"/no/{i}"), (f"M{i}", f"/{i}"))
                for method, path in pairs:
                    assert client.request(method, house.url + path).status_code >= 400
                client.request(f"REPORT{i}", f"{house.url}/v1/chat/completions")
                body = {"model": f"m{i}", "messages": [{"role": "user", "content": "x"}]}
                client.post(f"{house.url}/v1/chat/completions", json=body, headers={"x-api-key": f"k{i}"})
            client.get(f"{house.url}/metrics")
            return client.get(f"{house.url}/metrics").text

    first, second = told_after(0), told_after(100)
    assert len(first.splitlines()) == len(second.splitlines())  # the same series with other counts
    found = labels(second)
    assert found["method"] <= METHODS | {OTHER, ""}
    assert found["route"] <= {getattr(r, "path", "") for r in routes(house)} | {OTHER}
    assert all(re.fullmatch(r"[1-5]\d\d", status) for status in found["status"])


def routes(house: House) -> list[Any]:
    """All routes, including those of included routers."""
    found, left = [], list(house.app.routes)
    while left:
        route = left.pop()
        found.append(route)
        inner = getattr(route, "original_router", None)
        left += getattr(inner, "routes", [])
    return found


def engine(generated: int, requests: dict[str, int]) -> EngineStats:
    histograms = {
        name: Distribution(bounds, (generated, *([0] * len(bounds))), 1.0) for name, bounds in BOUNDS.items()
    }
    return EngineStats(requests, 1, 0, generated, 1, 0, 0, 0, 8, 8, 0, histograms)


def test_a10_models_and_finishes_have_so_many_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_MODELS", MOST_MODELS)
    many = {f"m{i}": engine(i, {"stop": 1, f"made up {i}": 2}) for i in range(3 * MOST_MODELS)}
    found = labelled(many)
    assert len(found) == MOST_MODELS + 1 and found["m7"] is many["m7"]
    others = range(MOST_MODELS, 3 * MOST_MODELS)
    assert found[OTHER].generated_tokens == sum(others)
    assert found[OTHER].histograms["queue_seconds"].count == sum(others)
    counts = Counts(many, dict.fromkeys(many, True), HttpTraffic(), (), Connections(ConnectionLimits(1, 1)))
    text = rendered(counts).decode()
    told = labels(text)
    assert len(told["model"]) == MOST_MODELS + 1 and told["finish"] <= FINISHES | {OTHER}
    assert f'satchel_requests_total{{finish="other",model="other"}} {4.0 * MOST_MODELS}' in text
    assert f'satchel_model_loaded{{model="other"}} {2.0 * MOST_MODELS}' in text
    lines = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))
