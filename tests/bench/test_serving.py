"""Tests of bench/serving.py: a short load finds no fault in the real server, and the faults of a wrong
one.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

import canned_server
import serving
import serving_beside
from canned_server import KEY, Reply, canned
from serving_load import Mix, alone, crowd, faults, key, questions
from serving_process import MemoryWatch

from satchel.cli.load.drive import Bounds, Driven, LoadTarget, drive
from satchel.cli.load.requests import CHAT, LoadRequest
from satchel.cli.load.stream import Outcome
from satchel.errors import RequestError

linux = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads /proc")


def test_the_crowd_is_made_of_what_it_says() -> None:
    asked = questions(3)
    assert asked == questions(3) and len({key(r) for r in asked}) == len(asked)
    some = list(itertools.islice(crowd(asked, Mix(leave=0.2, wrong=0.1, seed=1)), 3000))
    left, wrong = sum(bool(r.leave) for r in some), sum("top_p" in r.body for r in some)
    assert 500 < left < 700 and 200 < wrong < 400
    assert all(0 <= r.leave <= r.body["max_tokens"] for r in some)


def crowded(server: LoadTarget, asked: list[LoadRequest], mix: Mix, requests: int) -> Driven:
    """Like `under`, for a number of requests instead of a time."""
    bounds = Bounds(requests=requests, concurrency=mix.clients)
    return asyncio.run(drive(server, crowd(asked, mix), bounds))


def test_a_right_server_has_no_fault() -> None:
    with canned() as url:
        server = LoadTarget(url, "m", KEY)
        asked = questions(0)
        answers = alone(server, asked)
        found = crowded(server, asked, Mix(8, leave=0.3, wrong=0.2), 60)
    assert len(found.outcomes) == 60 and faults(found.outcomes, answers) == []
    assert any(o.left for o in found.outcomes) and any(o.status == 400 for o in found.outcomes)


def lost(asked: str, body: dict[str, Any], reply: Reply) -> None:
    if reply.events and body.get("stream_options"):
        del reply.events[3]


def mixed(asked: str, body: dict[str, Any], reply: Reply) -> None:
    if reply.events:
        reply.events[2], reply.events[3] = reply.events[3], reply.events[2]


def lenient(asked: str, body: dict[str, Any], reply: Reply) -> None:
    if reply.status == 400:
        reply.status, reply.events = 200, []


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lost, "a stream was"),
        (mixed, "a stream was"),
        (lenient, "what must be refused was answered with 200"),
    ],
)
def test_a_lost_or_mixed_token_is_a_fault(spoil: Any, text: str) -> None:
    asked = questions(0)
    with canned() as url:
        answers = alone(LoadTarget(url, "m", KEY), asked)
    with canned(spoil) as url:
        found = crowded(LoadTarget(url, "m", KEY), asked, Mix(4, leave=0, wrong=0.3), 40)
    assert any(fault.startswith(text) for fault in faults(found.outcomes, answers))


def test_memory_grows_from_its_second_quarter_to_its_last() -> None:
    watch = MemoryWatch(None)  # type: ignore[arg-type]
    watch.samples = [0, 50, 100, 100, 100, 101, 140, 141]
    assert watch.growth() == 40
    watch.samples = [7]
    assert watch.growth() == 0


@pytest.fixture
def keyless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canned server asks for no key, as the servers of a comparison do."""
    monkeypatch.setattr(canned_server.Handler, "check_key", lambda self: None)


def chat() -> Outcome:
    return Outcome(LoadRequest(CHAT, {"messages": [{"role": "user", "content": "Hello"}]}), due=0.0)


@pytest.mark.usefixtures("keyless")
def test_a_stream_of_the_comparison_has_the_pieces_that_the_load_finds() -> None:
    with canned() as url:
        outcome = chat()
        serving_beside.stream(url, outcome)
        bounds = Bounds(requests=1, concurrency=1)
        driven = asyncio.run(drive(LoadTarget(url), iter([outcome.request]), bounds)).outcomes[0]
    assert outcome.finish == driven.finish != "" and outcome.tokens == driven.tokens > 1
    assert len(outcome.pieces) == len(driven.pieces) > 1 and outcome.pieces == sorted(outcome.pieces)


def cut_off(asked: str, body: dict[str, Any], reply: Reply) -> None:
    del (reply.events or [])[2:]


@pytest.mark.usefixtures("keyless")
def test_a_comparison_ends_at_a_stream_that_is_not_whole() -> None:
    with canned(cut_off) as url, pytest.raises(RequestError, match="expected a whole stream, got HTTP 200"):
        serving_beside.stream(url, chat())


def test_a_comparison_ends_at_a_refusal_and_tells_it() -> None:
    with canned() as url, pytest.raises(RequestError, match=r"got HTTP 401: .*no valid key"):
        serving_beside.stream(url, chat())


def a_round(*pieces: float) -> serving_beside.Round:
    outcome = Outcome(chat().request, due=0.5, pieces=list(pieces), tokens=2 * len(pieces))
    return serving_beside.Round([outcome], 3.5, 4.0)


def test_a_comparison_tells_each_rounds_ratio() -> None:
    one, two, four = a_round(1.0, 9.0), a_round(1.0, 2.0), a_round(1.0, 1.5, 2.0, 2.5)
    assert [r.rate for r in (one, two, four)] == [0.5, 1.0, 2.0]  # a piece after the end does not count
    rows = list(serving_beside.compared(8, [two, four, four], [one, one, two]))
    assert [r.row for r in rows] == ["Satchel, clients: 8", "llama-server, clients: 8", "ratio, clients: 8"]
    assert rows[0].measured.startswith("2 t/s; first p50 500, p99 500 ms; next p50 500.0, p99 1000.0 ms")
    assert rows[2].measured == "2.00 times the tokens per second (2.00 to 4.00 in 3 rounds)"
    assert rows[2].met is False and list(serving_beside.compared(1, [two], [one]))[2].met is True


def test_a_round_without_a_token_is_no_comparison() -> None:
    with pytest.raises(RequestError, match=r"8 clients: expected tokens .* measure on an idle one"):
        list(serving_beside.compared(8, [a_round(1.0)], [a_round(9.0)]))


def test_rounds_alternate_which_server_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def note(url: str, clients: int, seed: int, seconds: float) -> serving_beside.Round:
        asked.append((url, seed))
        return a_round(1.0)

    monkeypatch.setattr(serving_beside, "asked", note)
    found = serving_beside.in_rounds(("a", "b"), 8, 2)
    assert asked == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("b", 2), ("a", 2)]
    assert [len(rounds) for rounds in found] == [2, 2]


def test_a_llama_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"--llama-server .*nothing: expected llama\.cpp's program"):
        serving.main(["--seconds", "0", "--llama-server", str(tmp_path / "nothing"), "--model", "m"])


@linux
@pytest.mark.model
@pytest.mark.nightly  # it measures for some ten seconds; its parts are tested above, the kill in tests/server
def test_a_short_crowd_on_the_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "found.json"
    serving.main(["--seconds", "3", "--clients", "16", "--json", str(path)])
    rows = {f["row"]: f for f in json.loads(path.read_text())["findings"]}
    assert rows["each stream is its answer"]["met"] is True, rows["each stream is its answer"]["measured"]
    assert "ms of the event loop a token" in rows["outside the engine"]["measured"]
    assert rows["kill -9 of the engine"]["measured"].startswith(("an answer after", "not measured"))
    assert capsys.readouterr().out.startswith("| row |")


@linux
def test_a_server_that_does_not_start_is_told() -> None:
    from serving_process import Process

    with (
        Process([sys.executable, "-c", "import sys; sys.exit('no such thing')"]) as process,
        pytest.raises(RequestError, match=r"exit code 1.*no such thing"),
    ):
        process.ready("/readyz")
