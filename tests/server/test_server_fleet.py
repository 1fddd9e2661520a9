"""A server with replicas: streams that outlive them, GET /fleet, joining and leaving over HTTP, metrics."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from waiting import ready, until, until_amid

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

from serving_process import children  # noqa: E402

from satchel.runtime.api.options import Options  # noqa: E402
from satchel.runtime.engine import watchdog  # noqa: E402
from satchel.server.settings import ServerSettings  # noqa: E402

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes in /proc")
LENGTH = 40


@pytest.fixture(scope="module")
def url(
    tiny: Path, serving_of: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    options = Options(worker="process", replicas=2, threads=1, slots=4, context=512)
    states = tmp_path_factory.mktemp("states")
    settings = ServerSettings(port=0, states=states)
    with pytest.MonkeyPatch.context() as patch, serving_of([tiny], options, settings) as found:
        # No replica is left out because a busy machine gives it no time.
        patch.setattr(watchdog, "MISSED", 1 << 30)
        ready(found)
        yield found


def asked(url: str, number: int, **how: Any) -> str:
    """The text of a streamed answer."""
    prompt = [100 + (number * 7 + i) % 150 for i in range(20)]
    body = {"prompt": prompt, "max_tokens": LENGTH, "ignore_eos": True, "seed": 3, "stream": True, **how}
    found = ""
    with httpx.stream("POST", f"{url}/v1/completions", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                found += event["choices"][0]["text"]
    return found


def members(url: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{url}/fleet")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["members"]
    return found


def ready_members(url: str) -> int:
    return sum(one["state"] == "ready" and not one["trouble"] for one in members(url))


def test_kill_9_of_a_replica_breaks_no_stream(url: str) -> None:
    wanted = [asked(url, n) for n in range(16)]
    engines = [pid for pid in children(os.getpid()) if b"worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(engines) == 2

    def read() -> list[str]:
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(lambda n: asked(url, n), range(16)))

    with ThreadPoolExecutor(1) as pool:
        working = until_amid(
            lambda: pool.submit(read),
            lambda: any(one["running"] for one in members(url)),
            "answers are under way",
        )
        os.kill(engines[0], signal.SIGKILL)
        assert working.result() == wanted
    # The answers may all have gone on elsewhere before the loss of an idle process is noticed.
    until(lambda: sum(one["processes_lost"] for one in members(url)) == 1, "the loss is noticed")
    until(lambda: ready_members(url) == 2, "the killed one has joined again")
    text = httpx.get(f"{url}/metrics").text
    assert 'satchel_member_lost_total{member="' in text and "satchel_requests_moved_total" in text
    assert text.count("satchel_member_ready{") == 2


def test_members_are_listed_with_their_load_and_what_they_know(url: str) -> None:
    asked(url, 50)
    found = members(url)
    assert [one["slots"] for one in found] == [4, 4] and {one["role"] for one in found} == {"both"}
    assert sum(one["known_blocks"] for one in found) > 0 and all(one["threads"] == 1 for one in found)
    assert len(httpx.get(f"{url}/slots").json()) == 8 == httpx.get(f"{url}/props").json()["total_slots"]


def test_members_join_and_leave_over_http(url: str) -> None:
    answer = httpx.post(f"{url}/fleet/members", json={})
    assert answer.status_code == 200 and answer.json()["state"] in ("joining", "ready"), answer.text
    until(lambda: ready_members(url) == 3, "a third has joined")
    first, second, _ = (one["member"] for one in members(url))
    with ThreadPoolExecutor(8) as pool:
        reading = [pool.submit(asked, url, n) for n in range(8)]
        assert httpx.post(f"{url}/fleet/members/{first}/drain", json={}).status_code == 200
        assert httpx.delete(f"{url}/fleet/members/{second}").status_code == 200
        texts = [one.result() for one in reading]
    assert texts == [asked(url, n) for n in range(8)]
    until(lambda: len(members(url)) == 1, "two have left")
    last = members(url)[0]["member"]
    refused = httpx.delete(f"{url}/fleet/members/{last}")
    assert refused.status_code == 409 and "add another first" in refused.text
    missing = httpx.delete(f"{url}/fleet/members/none")
    assert missing.status_code == 404 and "there is no member 'none'" in missing.text
    wrong = httpx.post(f"{url}/fleet/members", json={"device": "a,a"})
    assert wrong.status_code == 400 and "different names" in wrong.text
    fixed = httpx.post(f"{url}/fleet/scaling", json={"least": 1, "most": 3})
    assert fixed.status_code == 409 and "a fixed number of replicas" in fixed.text
    assert len(members(url)) == 1
    httpx.post(f"{url}/fleet/members", json={})
    until(lambda: ready_members(url) == 2, "there are two again")


def test_a_slot_is_saved_and_restored_whichever_replica_has_it(url: str) -> None:
    ids = [100 + n % 150 for n in range(200)]
    body = {"prompt": ids, "n_predict": 2, "id_slot": 6, "cache_prompt": True}
    assert httpx.post(f"{url}/completion", json=body).status_code == 200
    saved = httpx.post(f"{url}/slots/6?action=save", json={"filename": "talk"})
    assert saved.status_code == 200 and saved.json()["n_saved"] >= 192, saved.text
    restored = httpx.post(f"{url}/slots/7?action=restore", json={"filename": "talk"})
    assert restored.status_code == 200 and restored.json()["n_restored"] == saved.json()["n_saved"]


def test_a_model_with_one_engine_has_no_fleet(tiny: Path, serving_of: Callable[..., Any]) -> None:
    with serving_of([tiny], Options(threads=1), ServerSettings(port=0)) as alone:
        ready(alone)
        answer = httpx.get(f"{alone}/fleet")
        assert answer.status_code == 409 and "--replicas" in answer.text
