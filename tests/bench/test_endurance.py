"""Tests of bench/endurance.py: a correct server has no fault, lost and doubled tokens are counted, and slopes
are those of least squares lines.

The server here is a canned one; by night the real one runs for ten seconds. No verdict depends on time.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

import endurance
from canned_server import KEY, Reply, canned
from endurance import Answer, Compared, Samples, arguments, endure, findings, grown, slope
from endurance_hostile import ACTS, Hostile

from satchel.cli.load.requests import CHAT, LoadRequest
from satchel.cli.load.stream import Outcome

linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")


def driven(url: str, *options: str) -> dict[str, Any]:
    """The findings, by row, of half a second against a server in this process."""
    process: Any = SimpleNamespace(url=url, child=SimpleNamespace(pid=os.getpid()), engine=lambda: None)
    asked = arguments(["--seconds", "0.5", "--clients", "6", *options])
    found = list(findings(endure(process, [KEY, KEY], asked), asked.seconds))
    return {f.row: f for f in found}


@linux
def test_a_right_server_has_no_fault() -> None:
    with canned() as url:
        rows = driven(url, "--leave-out", "slow_reader,half_body")
    assert rows["streams"].met and rows["tokens"].met and rows["turned away"].met and rows["afterwards"].met
    assert rows["first token"].measured.startswith("p50") and rows["between tokens"].measured.startswith(
        "p50"
    )
    assert "answered" in rows["hostile key"].measured


def short(asked: str, body: dict[str, Any], reply: Reply) -> None:
    """Removes the third event of every answer that runs beside others."""
    if reply.events and body.get("stream_options"):
        short.seen = getattr(short, "seen", 0) + 1  # type: ignore[attr-defined]
        if short.seen > 24:  # type: ignore[attr-defined]
            del reply.events[3]


@linux
def test_a_lost_token_is_a_fault() -> None:
    with canned(short) as url:
        rows = driven(url, "--hostile", "0")
    assert rows["streams"].met is False and "a stream was" in rows["streams"].measured
    assert rows["afterwards"].met is False


def test_tokens_are_compared_one_stream_at_a_time() -> None:
    request = LoadRequest(CHAT, {"messages": [{"role": "user", "content": "a"}]})

    def outcome(text: str, tokens: int, **more: Any) -> Outcome:
        return Outcome(request, 0.0, text=[text], tokens=tokens, finish="stop", status=200, **more)

    compared, answer = Compared(), Answer("one two", 2)
    four = (
        outcome("one two", 2),
        outcome("one", 1, left=True),
        outcome("one", 1),
        outcome("one two two", 3),
    )
    for found in four:
        compared.add(found, answer)
    compared.add(Outcome(request, 0.0, status=503, error="HTTP 503: full"), answer)
    assert (compared.streams, compared.left, compared.busy) == (5, 1, 1)
    assert (compared.lost, compared.doubled) == (1, 1) and sum(compared.other.values()) == 2


def test_a_slope_is_that_of_its_line_after_the_warm_up() -> None:
    at = [float(i) for i in range(90)]
    line = [1000.0 if i < 30 else 5.0 + 2.0 * i for i in range(90)]
    assert slope(at, line) == pytest.approx(7200.0)
    assert slope(at, [7.0] * 90) == 0.0 and slope([], []) == 0.0 and slope([1.0], [5.0]) == 0.0


@pytest.mark.parametrize(("seconds", "met"), [(10.0, None), (3600.0, False)])
def test_growth_is_judged_where_a_run_is_long(seconds: float, met: bool | None) -> None:
    at = [i * seconds / 60 for i in range(60)]
    found = Samples("engine", 1, at, [i << 20 for i in range(60)], list(range(60)))
    rows = {f.row: f for f in grown([found], seconds)}
    assert rows["memory of the engine"].met is met and rows["descriptors of the engine"].met is met
    flat = Samples("engine", 1, at, [1 << 20] * 60, [9] * 60)
    assert all(f.met is not False for f in grown([flat], seconds))


@pytest.mark.parametrize("act", ACTS)
def test_each_hostile_act_ends(act: str) -> None:
    import random

    with canned() as url:
        client = Hostile(url, KEY, 0, (act,))
        try:
            ACTS[act](client, random.Random(0))
        except OSError:
            assert act in ("nonsense", "huge_prompt")
        finally:
            for wire in client.held:
                wire.close()


def test_an_act_that_is_not_known_is_an_error() -> None:
    with pytest.raises(SystemExit):
        arguments(["--leave-out", "no_such"])


@linux
@pytest.mark.nightly
@pytest.mark.model
def test_ten_seconds_of_the_real_server(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    endurance.main(["--seconds", "10", "--clients", "16", "--json", str(path)])
    rows = {f["row"]: f for f in json.loads(path.read_text())["findings"]}
    assert rows["streams"]["met"] and rows["tokens"]["met"] and rows["afterwards"]["met"], rows
    assert rows["engine processes"]["met"] and "MiB an hour" in rows["memory of the engine"]["measured"]
