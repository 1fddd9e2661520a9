"""A version of an alias that gets copies of requests is promoted or taken back by what they show."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic")

from tiny_file import write_model
from waiting import until, until_async

from satchel.errors import RequestError
from satchel.runtime.api.generate_options import GenerateKwargs
from satchel.runtime.api.options import Options
from satchel.runtime.fleet.comparison import Observation
from satchel.runtime.sampling import GREEDY
from satchel.server import webhook
from satchel.server.alias import Alias
from satchel.server.catalog import AliasTable, Catalog, catalog_of
from satchel.server.generation import Caller, GenerationRequest, Text
from satchel.server.models import Models
from satchel.server.shadow import begin_answer

SMALL = Options(context=96, slots=2)


async def answer(models: Models, name: str) -> str:
    """Lets a model or an alias answer; gives the version that did."""
    wanted = GenerationRequest(name, Text("Once"), GenerateKwargs(sampling=GREEDY, max_tokens=3))
    made = await begin_answer(models, wanted, Caller(""))
    await made.read()
    await made.close()
    return made.name


class Told(list[dict[str, Any]]):
    """What a webhook is told, by an address of this machine."""

    def __init__(self, refused: int = 0) -> None:
        told, left = self, [refused]

        class Hook(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                left[0] -= 1
                self.send_response(503 if left[0] >= 0 else 200)
                self.end_headers()
                if left[0] < 0:
                    told.append(body)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
        self.url = f"http://127.0.0.1:{self.server.server_port}/secret"

    def __enter__(self) -> Told:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *args: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def judged(promote: bool, url: str = "", **how: Any) -> Alias:
    table = AliasTable(
        versions={"a": 1},
        shadow="b",
        promote=promote,
        least_compared=16,
        most_compared=64,
        webhook=url,
        **how,
    )
    return Alias("chat", table)


def test_a_shadow_that_is_as_good_gets_all_requests_and_the_webhook_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webhook, "PAUSE", 0.01)
    with Told(refused=2) as told:
        alias = judged(True, told.url, least_agreement=0.5, rollback_errors=0.3, window=10)
        for _ in range(16):
            assert alias.choose() == "a" and alias.shadows()
            alias.compare(Observation(0.01, 1.0), 0.1)
        assert alias.promoted == "b" and alias.choose("anyone") == "b" and not alias.shadows()
        until(lambda: len(told) == 1, "the webhook is told, at the third try")
        assert (told[0]["alias"], told[0]["change"], told[0]["model"]) == ("chat", "promoted", "b")
        assert told[0]["compared"] == 16 and told[0]["divergence"][0] == pytest.approx(0.01)
        for _ in range(10):
            alias.record("b", True, 0.1)
        assert alias.choose() == "a" and set(alias.weights) == {"a"}, "it failed, and the one before is back"
        until(lambda: len(told) == 2, "and once more")
        assert told[1]["change"] == "rolled back"
        assert [event["change"] for event in alias.as_json()["changes"]] == ["promoted", "rolled back"]


def promote(alias: Alias) -> None:
    for _ in range(16):
        alias.compare(Observation(0.01, 1.0), 0.1)


def fail(alias: Alias) -> None:
    promote(alias)
    for _ in range(10):
        alias.record("b", True, 0.1)


def differ(alias: Alias) -> None:
    for _ in range(16):
        alias.compare(Observation(2.0, 1.0), 0.1)


@pytest.mark.parametrize(
    ("promotes", "what", "changes"),
    [
        (True, promote, ["promoted"]),
        (True, fail, ["promoted", "rolled back"]),
        (True, differ, ["taken back"]),
        (True, lambda alias: alias.cannot_compare("another vocabulary"), ["taken back"]),
        (False, promote, ["would promote"]),
        (False, differ, ["would take back"]),
    ],
)
def test_each_change_is_told_to_the_webhook_once(promotes: bool, what: Any, changes: list[str]) -> None:
    told = list[tuple[str, Any]]()
    alias = judged(promotes, "https://hook", least_agreement=0.5, rollback_errors=0.3, window=10)
    alias.tell = lambda url, event: told.append((url, event))
    what(alias)
    assert [event["change"] for _, event in told] == changes
    assert all(url == "https://hook" and event["model"] == "b" for url, event in told)
    assert [event for _, event in told] == list(alias.changes)


def test_a_shadow_that_is_worse_or_fails_gets_no_more_copies() -> None:
    for seen in (Observation(2.0, 1.0), Observation(0.0, 0.2), None):
        alias = judged(True)
        for _ in range(16):
            assert alias.shadows()
            alias.compare(seen, 0.1)
        assert not alias.shadows() and alias.choose() == "a" and not alias.promoted
        (change,) = alias.changes
        assert change["change"] == "taken back"
        told = {v["model"]: v for v in alias.as_json()["versions"]}
        assert told["b"]["verdict"] == "take back" and told["b"]["rolled_back"]


def test_without_promote_a_verdict_changes_nothing_and_is_told_once() -> None:
    alias = judged(False, least_agreement=0.5)
    for _ in range(20):
        alias.compare(Observation(0.01, 1.0), 0.1)
        assert alias.shadows() and alias.choose() == "a"
    assert [event["change"] for event in alias.changes] == ["would promote"]


def serve(catalog: Catalog, work: Any) -> None:
    async def whole() -> None:
        models = Models(catalog)
        try:
            await work(models)
        finally:
            await models.close()

    asyncio.run(whole())


def test_requests_promote_a_version_of_the_same_weights_and_take_back_one_of_others(tmp_path: Path) -> None:
    """From one end to the other: three files, of which one answers, one is its copy, and one is random."""
    a, same = (write_model(tmp_path / f"{name}.gguf") for name in ("a", "same"))
    other = write_model(tmp_path / "other.gguf", seed=9)
    table = {"versions": {"a": 1}, "promote": True, "least_compared": 16, "most_compared": 16}
    table |= {"least_agreement": 0.5}
    tables = {"aliases": {f"to {name}": {**table, "shadow": name} for name in ("same", "other")}}

    async def work(models: Models) -> None:
        for name in ("same", "other"):
            alias = models.aliases[f"to {name}"]
            record = alias.records[name]
            for n in range(16):
                assert await answer(models, alias.name) == "a"
                await until_async(lambda n=n, record=record: record.compared > n, "it is compared")  # type: ignore[misc]
        assert await answer(models, "to same") == "same" and await answer(models, "to other") == "a"
        changes = [models.aliases[f"to {name}"].changes[0] for name in ("same", "other")]
        assert [c["change"] for c in changes] == ["promoted", "taken back"]
        assert changes[0]["divergence"][0] == 0 and changes[1]["divergence"][0] > 0

    serve(catalog_of({"a": a, "same": same, "other": other}, tables, SMALL, 0, None), work)


@pytest.mark.model
def test_a_shadow_of_another_vocabulary_is_not_compared(bundled_model: Path, tmp_path: Path) -> None:
    files = {"a": write_model(tmp_path / "a.gguf"), "other": bundled_model}
    table = {"aliases": {"chat": {"versions": {"a": 1}, "shadow": "other"}}}

    async def work(models: Models) -> None:
        await answer(models, "chat")
        alias = models.aliases["chat"]
        await until_async(lambda: bool(alias.changes), "it is seen")
        assert "its tokens are not those of a" in alias.changes[0]["reason"] and not alias.shadows()

    serve(catalog_of(files, table, SMALL, 0, None), work)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"promote": True}, "promote: expected a shadow"),
        ({"shadow": "b", "least_compared": 9, "most_compared": 8}, "least_compared: expected at most"),
        ({"webhook": "ftp://x"}, "webhook: expected a URL"),
    ],
)
def test_aliases_that_contradict_themselves(tmp_path: Path, table: dict[str, Any], told: str) -> None:
    files = {name: tmp_path / name for name in ("a", "b")}
    with pytest.raises(RequestError, match=told):
        catalog_of(files, {"aliases": {"chat": {"versions": {"a": 1}, **table}}}, SMALL, 0, None)
