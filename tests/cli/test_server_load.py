"""`satchel bench --url`: requests are sent when they are due, and responses are counted correctly."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx")

from canned_model import ANSWER
from canned_server import KEY, Reply, canned
from waiting import happened

from satchel.cli.load.drive import Bounds, Clock, Driven, LoadTarget, drive
from satchel.cli.load.processes import MadeUpLoad, joined, parts_of, processes_for, run_load
from satchel.cli.load.requests import CHAT, TEXT, LoadRequest, LoadShape, made_up, recorded, with_leavers
from satchel.cli.load.stream import Outcome, events, message
from satchel.cli.load.summary import quantile, spread, steady_rate, summary
from satchel.cli.load.sweep import RANDOM, sweep
from satchel.cli.main import main
from satchel.errors import RequestError

PATH = "/v1/chat/completions"
ASKED = LoadRequest(CHAT, {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8})


def driven(url: str, requests: Any, bounds: Bounds) -> Driven:
    return asyncio.run(drive(LoadTarget(url, "m", KEY), iter(requests), bounds))


def test_whole_streams_are_counted_with_their_times() -> None:
    with canned() as url:
        found = driven(url, [ASKED] * 12, Bounds(concurrency=3))
    assert len(found.outcomes) == 12 and found.most == 3
    for outcome in found.outcomes:
        assert outcome.whole and outcome.finish == "length" and outcome.tokens == len(outcome.pieces) == 8
        assert ANSWER.startswith("".join(outcome.text)) and outcome.prompt_tokens == 5
        assert outcome.due <= outcome.sent < outcome.pieces[0] <= outcome.pieces[-1] <= outcome.ended
    told = summary(found)
    assert (told["requests"], told["completed"], told["tokens"]) == (12, 12, 96)
    assert told["errors"] == {} and told["tokens_per_piece"] == 1
    assert 0 < told["ttft_ms"]["p50"] <= told["ttft_ms"]["p99"] <= told["ttft_ms"]["max"]


def test_completions_are_driven_too() -> None:
    with canned() as url:
        found = driven(url, [LoadRequest(TEXT, {"prompt": "Once", "max_tokens": 4})], Bounds())
    assert found.outcomes[0].whole and len(found.outcomes[0].pieces) == 4


def test_a_client_that_leaves_is_no_error() -> None:
    with canned() as url:
        found = driven(url, [LoadRequest(CHAT, ASKED.body, leave=2)], Bounds())
    (outcome,) = found.outcomes
    assert outcome.left and not outcome.error and len(outcome.pieces) == 2
    assert summary(found)["disconnected"] == 1


def cut(asked: str, body: dict[str, Any], reply: Reply) -> None:
    if reply.events:
        del reply.events[3:]


def broken(asked: str, body: dict[str, Any], reply: Reply) -> None:
    if reply.events:
        reply.events[3:] = [("", {"error": {"message": "context full", "code": "x"}})]


def nonsense(asked: str, body: dict[str, Any], reply: Reply) -> None:
    if reply.events:
        reply.events[2:] = [("", "no json")]


def busy(asked: str, body: dict[str, Any], reply: Reply) -> None:
    reply.status, reply.events, reply.body = 429, None, {"error": {"message": "come later"}}


@pytest.mark.parametrize(
    ("spoil", "error", "refused"),
    [
        (cut, "cut off: the stream ended without a finish_reason", 0),
        (broken, "in the stream: context full", 0),
        (nonsense, "in the stream: an event that is no chunk of an answer", 0),
        (busy, "HTTP 429: come later", 1),
    ],
)
def test_what_goes_wrong_is_told_apart(spoil: Any, error: str, refused: int) -> None:
    with canned(spoil) as url:
        told = summary(driven(url, [ASKED], Bounds()))
    assert told["errors"] == {error: 1} and told["completed"] == 0
    assert (told["refused"], told["failed"]) == (refused, 1 - refused)


def test_nobody_there_is_an_outcome() -> None:
    found = asyncio.run(drive(LoadTarget("http://127.0.0.1:9", "m"), iter([ASKED]), Bounds()))
    assert found.outcomes[0].error == "connection: ConnectError"


def test_requests_wait_until_they_are_due_and_none_begins_after_the_end() -> None:
    """The clock is simulated: it advances only while the load sleeps."""
    now, slept = 7.0, list[float]()

    async def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        await asyncio.sleep(0)  # lets earlier requests proceed
        now += seconds

    requests = [LoadRequest(CHAT, ASKED.body, due) for due in (0.0, 15.0, 30.0, 50.0)]
    with canned() as url:
        clock = Clock(lambda: now, sleep)
        found = asyncio.run(
            drive(LoadTarget(url, "m", KEY), iter(requests), Bounds(seconds=40.0), clock=clock)
        )
    assert slept == [0.0, 15.0, 15.0] and found.seconds == 30.0
    assert sorted(o.due for o in found.outcomes) == [7.0, 22.0, 37.0]


def test_answers_that_do_not_end_in_time_are_given_up() -> None:
    over = threading.Event()

    def stuck(asked: str, body: dict[str, Any], reply: Reply) -> None:
        happened(over, "the load has given up")

    with canned(stuck) as url:
        found = driven(url, [ASKED] * 3, Bounds(grace=0.1))
        over.set()
    assert (found.outcomes, found.given_up) == ([], 3)


def test_made_up_loads_have_their_shape_and_can_be_repeated() -> None:
    shape = LoadShape((4, 9), (3, 5), rate=100.0)
    some = list(itertools.islice(made_up(shape, 1), 2000))
    assert some == list(itertools.islice(made_up(shape, 1), 2000))
    assert {len(r.body["messages"][0]["content"].split()) for r in some} == {4, 9}
    assert {r.body["max_tokens"] for r in some} == {3, 5}
    gaps = [b.due - a.due for a, b in itertools.pairwise(some)]
    mean = sum(gaps) / len(gaps)
    variance = sum((g - mean) ** 2 for g in gaps) / len(gaps)
    # The standard deviation of an exponential distribution equals its mean.
    assert 0.009 < mean < 0.011 and 0.8 < variance / mean**2 < 1.2
    leave = [r.leave for r in with_leavers(iter(some), 0.25, 2)]
    assert 0.2 < sum(map(bool, leave)) / 2000 < 0.3
    assert all(n <= r.body["max_tokens"] for n, r in zip(leave, some, strict=True))
    assert next(made_up(LoadShape((4,), (3,), text=True), 0)).path == TEXT


def test_recorded_loads_are_read(tmp_path: Path) -> None:
    path = tmp_path / "load.jsonl"
    late = '{"at": 2, "messages": [{"role": "user", "content": "b"}], "max_tokens": 4}'
    path.write_text(late + '\n\n{"prompt": "a", "top_k": 1}\n')
    first, second = recorded(path)
    assert (first.path, first.due, first.body) == (TEXT, 0.0, {"prompt": "a", "top_k": 1})
    assert (second.path, second.due, second.body["max_tokens"]) == (CHAT, 2.0, 4)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("", "no request in it"),
        ("x", ":1: no JSON"),
        ("[]", ":1: expected an object, got list"),
        ('{"at": -1, "prompt": "a"}', ":1: at is -1"),
        ('{"at": NaN, "prompt": "a"}', ":1: at is nan"),
        ('{"at": true, "prompt": "a"}', ":1: at is True"),
        ('{"at": 1}', ":1: expected either prompt or messages"),
        ('{"prompt": "a", "messages": []}', ":1: expected either prompt or messages"),
    ],
)
def test_a_wrong_recording_is_named_with_its_line(tmp_path: Path, line: str, text: str) -> None:
    path = tmp_path / "load.jsonl"
    path.write_text(line)
    with pytest.raises(RequestError, match=text):
        recorded(path)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_found_however_the_bytes_are_cut(size: int) -> None:
    raw = ': ping\n\ndata: {"a": "日本"}\r\n\r\nevent: x\ndata:2\n\ndata: [DONE]\n\n'.encode()

    async def bits() -> Any:
        for start in range(0, len(raw), size):
            yield raw[start : start + size]

    async def all_of() -> list[str]:
        return [e async for e in events(bits())]

    assert asyncio.run(all_of()) == ['{"a": "日本"}', "2", "[DONE]"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "a\\nb"}}', "a b"),
        (b'{"error": "a"}', "a"),
        (b'{"detail": "a"}', "a"),
        (b"<html>", "<html>"),
        (b"[1]", "[1]"),
    ],
)
def test_errors_of_any_dialect_are_read(body: bytes, text: str) -> None:
    assert message(body) == text


def test_percentiles_are_nearest_ranks() -> None:
    ranked = [float(i) for i in range(1, 101)]
    assert [quantile(ranked, s) for s in (0.5, 0.9, 0.99, 1.0)] == [50, 90, 99, 100]
    assert quantile([3.0], 0.5) == 3 and spread([]) is None


def test_the_command_prints_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    with canned() as url:
        ask = ["bench", "--url", url, "--api-key", KEY, "-p", "5", "-n", "6", "--requests", "9"]
        assert main([*ask, "--concurrency", "2", "--arrivals", "0"]) == 0
        table = capsys.readouterr()
        assert main([*ask, "--rate", "200", "--disconnect", "1", "-o", "json", "-m", "m"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
    head, _, cells = (
        [c.strip() for c in line.strip("|").split("|")] for line in table.out.strip().split("\n")
    )
    assert head[:4] == ["model", "load", "asked", "whole"] and cells[:4] == ["m", "2 clients", "9", "9"]
    assert "first: from when a request was due" in table.err
    assert (row["load"], row["disconnected"], row["failed"]) == ("200 req/s", 9, 0)


def test_the_command_sweeps_clients_and_then_random_arrivals(capsys: pytest.CaptureFixture[str]) -> None:
    with canned() as url:
        asked = ["bench", "--url", url, "--api-key", KEY, "-p", "5", "-n", "6", "--requests", "20"]
        assert main([*asked, "-o", "json"]) == 0
    shown = capsys.readouterr()
    *closed, last = json.loads(shown.out)
    assert [(r["load"], r["clients"], r["completed"]) for r in closed] == [
        ("1 client", 1, 20),
        ("16 clients", 16, 20),
        ("64 clients", 64, 20),
    ]
    best = max(r["steady_requests_per_second"] for r in closed)
    assert (last["clients"], last["completed"]) == (0, 20)
    assert last["rate"] == pytest.approx(0.8 * best) and last["load"].endswith(" req/s")
    assert f"at most {best:.2f} req/s" in shown.err and "at 80% of that" in shown.err
    for row in (*closed, last):
        assert row["tokens"] == 120 and row["failed"] == 0
        assert 0 < row["ttft_ms"]["p50"] <= row["ttft_ms"]["p99"]
        assert 0 < row["inter_token_ms"]["p50"] <= row["inter_token_ms"]["p99"]


@dataclass
class Played:
    """Runs loads without a server: each request takes a second, and as many at once as there are clients."""

    rates: dict[int, float]  # requests per second, by clients
    seen: list[tuple[list[LoadRequest], Bounds]] = field(default_factory=list)

    def __call__(self, load: MadeUpLoad, clients: int) -> Driven:
        bounds = load.bounds
        sent = list(itertools.islice(made_up(load.shape, load.seed), bounds.requests))
        self.seen.append((sent, bounds))
        rate = self.rates.get(bounds.concurrency, 1.0)
        outcomes = [
            Outcome(r, i / rate, sent=i / rate, ended=(i + 1) / rate, finish="stop" if rate else "")
            for i, r in enumerate(sent)
        ]
        return Driven(outcomes, 1.0, bounds.concurrency)


def test_a_sweep_ends_with_a_share_of_the_highest_rate() -> None:
    run, shape = Played({2: 4.0, 8: 20.0, 16: 10.0}), LoadShape([7], [30, 2])
    rows = list(sweep(run, shape, [2, 8, 16], Bounds(), 0.8, seed=3))
    assert [load.name for load, _ in rows] == ["2 clients", "8 clients", "16 clients", "16 req/s"]
    assert [load.bounds for load, _ in rows] == [
        Bounds(32, 0.0, 2),
        Bounds(32, 0.0, 8),
        Bounds(64, 0.0, 16),
        Bounds(64, 0.0, 0),
    ]
    warm = run.seen[0:6:2]
    assert [(len(sent), b.concurrency) for sent, b in warm] == [(2, 2), (8, 8), (16, 16)]
    assert {r.body["max_tokens"] for sent, _ in warm for r in sent} <= {4, 2}
    texts = [r.body["messages"][0]["content"] for sent, _ in run.seen for r in sent]
    assert len(set(texts)) == len(texts), "no row finds another's prompts in a cache"
    arrivals = [r.due for r in run.seen[-1][0]]
    assert arrivals == sorted(arrivals) and arrivals[0] > 0
    assert arrivals == [r.due for r in itertools.islice(made_up(replace(shape, rate=16.0), 3 + RANDOM), 64)]


def test_a_sweep_without_arrivals_warm_ups_or_answers() -> None:
    run = Played({2: 4.0})
    shape = LoadShape([7], [30])
    assert [load.name for load, _ in sweep(run, shape, [1, 2], Bounds(5), 0.0, 0, warm_up=False)] == [
        "1 client",
        "2 clients",
    ]
    assert [len(sent) for sent, _ in run.seen] == [5, 5]

    def silent(load: MadeUpLoad, clients: int) -> Driven:
        return Driven([Outcome(ASKED, 0.0, error="HTTP 500: no")], 1.0, 1)

    assert len(list(sweep(silent, shape, [1], Bounds(), 0.8, 0))) == 1


def test_a_load_is_shared_by_processes() -> None:
    load = MadeUpLoad(LoadShape([7], [30], rate=9.0), 5, Bounds(11, 2.5, 7), 0.5)
    parts = parts_of(load, 3)
    assert [p.bounds for p in parts] == [Bounds(4, 2.5, 3), Bounds(4, 2.5, 2), Bounds(3, 2.5, 2)]
    assert {p.shape.rate for p in parts} == {3.0} and {p.leave for p in parts} == {0.5}
    assert len({next(made_up(p.shape, p.seed)).body["messages"][0]["content"] for p in parts}) == 3
    endless = parts_of(replace(load, bounds=Bounds()), 2)
    assert [p.bounds for p in endless] == [Bounds()] * 2
    assert len(parts_of(replace(load, bounds=Bounds(2, 0.0, 9)), 4)) == 2, (
        "a part without a request has no end"
    )
    assert parts_of(load, 1) == [load]


def test_only_many_clients_take_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    assert [processes_for(n) for n in (0, 1, 16, 64, 500)] == [1, 1, 1, 4, 8]
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert processes_for(64) == 1


def test_the_parts_of_a_load_are_joined() -> None:
    parts = [
        Driven([Outcome(ASKED, 0.0, sent=2.0, ended=5.0)], 3.0, 2, 1),
        Driven([Outcome(ASKED, 0.0, sent=1.0, ended=3.0)], 2.0, 3, 0),
    ]
    found = joined(parts)
    assert ([o.sent for o in found.outcomes], found.seconds) == ([1.0, 2.0], 4.0)
    assert (found.most, found.given_up) == (5, 1)
    assert joined([Driven([], 3.0, 0, 2), Driven([], 2.0, 0, 1)]) == Driven([], 3.0, 0, 3)


def test_processes_ask_a_real_server() -> None:
    load = MadeUpLoad(LoadShape([5], [6]), 1, Bounds(9, 0.0, 4))
    with canned() as url:
        found = run_load(LoadTarget(url, "m", KEY), load, 2)
    assert len(found.outcomes) == 9 and all(o.whole and o.tokens == 6 for o in found.outcomes)
    assert [o.sent for o in found.outcomes] == sorted(o.sent for o in found.outcomes)


def test_the_steady_rate_leaves_out_the_last_answers() -> None:
    def outcome(sent: float, ended: float, error: str = "") -> Outcome:
        return Outcome(ASKED, sent, sent=sent, ended=ended, error=error)

    found = [outcome(0, 1), outcome(0, 2), outcome(1, 3), outcome(2, 9), outcome(0, 1, "x")]
    assert steady_rate(found) == 2 / 2
    assert steady_rate(found[:2]) == 2 / 2, "all were sent at once"
    assert steady_rate(found[-1:]) == 0 == steady_rate([])


def unnamed(asked: str, body: dict[str, Any], reply: Reply) -> None:
    if asked.endswith("/models"):
        reply.body = {"data": []}


@pytest.mark.parametrize(
    ("arguments", "spoil", "text"),
    [
        (["-m", "n"], None, "refuses the model 'n': HTTP 404: no such model; the server lists m: name one"),
        (["--api-key", "x", "-m", "m"], None, "refuses a first request to 'm': HTTP 401: no valid key"),
        (["-p", "2000"], None, "refuses a first request to 'm': HTTP 400: too long"),
        ([], cut, "the first answer is not whole: cut off: the stream ended without a finish_reason"),
        ([], broken, "the first answer is not whole: in the stream: context full"),
        ([], unnamed, "/v1/models lists no model: name one with -m"),
    ],
)
def test_a_server_that_cannot_be_measured_is_one_line(
    arguments: list[str], spoil: Any, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with canned(spoil) as url:
        key = [] if "--api-key" in arguments else ["--api-key", KEY]
        sizes = [] if "-p" in arguments else ["-p", "5"]
        assert main(["bench", "--url", url, "-n", "9", *sizes, *key, *arguments]) == 1
    said = capsys.readouterr()
    assert text in said.err and said.err.count("\n") == 1 and said.out == ""


def test_answers_of_full_length_are_asked_for() -> None:
    shape = LoadShape([3], [5], whole=True)
    assert next(made_up(shape, 0)).body["ignore_eos"] is True
    assert "ignore_eos" not in next(made_up(replace(shape, whole=False), 0)).body


def test_a_recording_is_replayed_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "night.jsonl"
    path.write_text('{"prompt": "a", "max_tokens": 3}\n{"at": 0.1, "prompt": "b", "model": "other"}\n')
    with canned() as url:
        assert main(["bench", "--url", url, "--api-key", KEY, "--load", str(path), "-o", "jsonl"]) == 0
    shown = capsys.readouterr()
    row = json.loads(shown.out)
    assert (row["load"], row["completed"], row["failed"]) == ("night.jsonl", 1, 1)
    assert "satchel: night.jsonl: 1 x HTTP 404: no such model" in shown.err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--rate", "2"], 2, "--rate: it goes with --url"),
        (["--url", "x"], 2, "--url: expected http://HOST:PORT"),
        (["--url", "http://x", "-pg", "1,2"], 2, "-pg: expected no such test with --url"),
        (["--url", "http://x", "-p", "0"], 2, "-p: expected 1 or more, got 0"),
        (["--url", "http://x", "-m", "a", "-m", "b"], 2, "-m: expected one model with --url, got 2"),
        (["--url", "http://x", "--load", "f", "--rate", "2"], 2, "--rate: the recorded requests"),
        (["--url", "http://x", "--load", "f", "--ignore-eos"], 2, "--ignore-eos: the recorded requests"),
        (
            ["--url", "http://x", "--rate", "2", "--concurrency", "1,2"],
            2,
            "--concurrency: expected one number",
        ),
        (
            ["--url", "http://x", "--concurrency", "1,x"],
            2,
            "--concurrency: expected comma-separated integers",
        ),
        (["--url", "http://x", "--concurrency", "0"], 2, "--concurrency: expected 1 or more, got 0"),
        (["--ignore-eos"], 2, "--ignore-eos: it goes with --url"),
        (["--url", "http://127.0.0.1:9"], 1, "http://127.0.0.1:9/v1/models: no list of models"),
        (["--url", "http://127.0.0.1:9"], 1, "start it, or correct --url"),
        (["--url", "http://127.0.0.1:9", "-m", "m"], 1, "no server answers there (connection: ConnectError)"),
        (["--url", "http://127.0.0.1:9", "-m", "m", "--load", "/none.jsonl"], 1, "/none.jsonl: No such file"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == code
    said = capsys.readouterr()
    assert text in said.err and said.err.count("\n") == 1 and said.out == ""


def test_no_answer_at_all_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with canned(busy) as url:
        assert main(["bench", "--url", url, "-m", "m", "--requests", "2", "--concurrency", "1,3"]) == 1
    said = capsys.readouterr().err
    assert "satchel: 1 client: 2 x HTTP 429: come later" in said and "3 clients: 2 x HTTP 429" in said
    assert "req/s, of" not in said, "no rate is known, so nothing comes at a share of it"
