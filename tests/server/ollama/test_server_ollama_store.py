"""Ollama's client changes the store: models are pulled from the test's hub, copied and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import hub_server
import pytest
from waiting import ready

ollama = pytest.importorskip("ollama")

from satchel.errors import RequestError  # noqa: E402
from satchel.runtime.api.options import Options  # noqa: E402
from satchel.server.catalog import catalog_of  # noqa: E402
from satchel.server.models import Models  # noqa: E402
from satchel.server.ollama.store import ServerPull, serve, store_name  # noqa: E402
from satchel.server.problem import Problem  # noqa: E402
from satchel.server.settings import ServerSettings  # noqa: E402


@pytest.fixture
def hub(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hub_server.Hub]:
    """A hub with two names of the tiny model, and a store of its own."""
    with hub_server.registries(tmp_path, monkeypatch) as running:
        running.put_ollama("library/small", "latest", tiny.read_bytes())
        running.put_repo("me/small", {"small-Q8_0.gguf": tiny.read_bytes()})
        yield running


@pytest.fixture
def address(hub: hub_server.Hub, tiny: Path, serving_of: Any) -> Iterator[str]:
    with serving_of([tiny], Options(), ServerSettings(port=0)) as found:
        ready(found)  # a model that is being loaded is in use
        yield found


@pytest.fixture
def client(address: str) -> Any:
    return ollama.Client(host=address, timeout=60)


def names(client: Any) -> list[str]:
    return [model.model for model in client.list().models]


@contextmanager
def refused(status: int) -> Iterator[None]:
    with pytest.raises(ollama.ResponseError) as error:
        yield
    assert error.value.status_code == status


@pytest.mark.parametrize("name", ["small", "ollama:small:latest", "hf.co/me/small:Q8_0"])
def test_a_model_is_pulled_and_answers(client: Any, tiny: Path, name: str) -> None:
    steps = list(client.pull(name, stream=True))
    assert steps[0].status == "pulling manifest" and steps[-1].status == "success"
    (digest,) = {step.digest for step in steps if step.digest}
    last = [step for step in steps if step.digest][-1]
    assert digest.startswith("sha256:") and last.completed == last.total == tiny.stat().st_size
    assert client.generate(model=name, prompt="x", options={"num_predict": 2}).eval_count == 2
    assert len(names(client)) == 2


def test_the_last_step_of_a_pull_is_told_although_the_end_is_known_by_then() -> None:
    async def told() -> list[Any]:
        work = ServerPull(None, "small", None, None)  # type: ignore[arg-type]
        for step in ("first", "last", None, None):
            work._reports.put_nowait(step)  # type: ignore[arg-type]
        return [await work._latest(), await work._latest()]

    assert asyncio.run(told()) == ["last", None]


def test_a_pulled_model_is_copied_and_deleted(client: Any) -> None:
    assert client.pull("small").status == "success"
    client.copy("small", "mine")
    assert names(client) == ["tiny:latest", "small:latest", "mine:latest"]
    with refused(409):
        client.copy("small", "mine")
    client.generate(model="small")
    for name in ("small", "mine"):
        assert client.delete(name).status == "success"
    assert names(client) == ["tiny:latest"]
    assert {model.model for model in client.ps().models} <= {"tiny:latest"}
    with refused(404):
        client.delete("small")


def test_what_is_not_the_stores_stays(client: Any, tiny: Path) -> None:
    client.pull("small")
    with refused(400):
        client.delete("tiny")
    assert tiny.exists() and "tiny:latest" in names(client)
    with refused(404):
        client.copy(str(tiny), "mine")


def test_a_pull_that_fails_says_so(client: Any, address: str) -> None:
    with pytest.raises(ollama.ResponseError, match="nothing"):
        list(client.pull("nothing", stream=True))
    with refused(400):
        client.pull("nothing")
    with refused(400):
        client.create_blob(__file__)
    assert httpx.head(f"{address}/api/blobs/sha256:{'0' * 64}").status_code == 404
    assert names(client) == ["tiny:latest"]


def test_a_model_is_created_of_a_served_one(client: Any, address: str) -> None:
    made = {"parameters": {"temperature": 0.25, "num_ctx": 64}, "system": "Be brief."}
    assert client.create("brief", from_="tiny", **made).status == "success"
    assert names(client) == ["tiny:latest", "brief:latest"]
    answer = client.chat("brief", [{"role": "user", "content": "hi"}], options={"num_predict": 1})
    assert answer.eval_count == 1
    found = httpx.get(f"{address}/props", params={"model": "brief"}).json()
    assert found["default_generation_settings"]["params"]["temperature"] == 0.25
    assert "Be brief." in found["chat_template"]
    assert "temperature                    0.25\n" in client.show("brief").parameters
    with refused(409):
        client.create("brief", from_="tiny")
    with refused(400):
        client.create("hot", from_="tiny", parameters={"temperature": "hot"})
    client.delete("brief")
    assert names(client) == ["tiny:latest"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("llama3.2", "ollama:llama3.2"),
        ("me/x:q4", "ollama:me/x:q4"),
        ("hf:me/x", "hf:me/x"),
        ("huggingface.co/me/x:Q8_0", "hf:me/x:Q8_0"),
        ("https://huggingface.co/me/x/tree/main", "hf:me/x"),
    ],
)
def test_names_are_the_stores(given: str, meant: str) -> None:
    assert store_name(given) == meant


@pytest.mark.parametrize("name", ["http://10.0.0.1/x.gguf", "https://h/x.gguf", "file:///etc/passwd"])
def test_H12_no_address_is_fetched_for_a_client(name: str) -> None:
    with pytest.raises(Problem) as error:
        store_name(name)
    assert error.value.status == 400


def test_what_was_added_stays_when_the_configuration_is_read_again(tiny: Path) -> None:
    catalog = catalog_of({"a": tiny}, {}, Options(), 0, None)
    models = Models(catalog)
    serve(models, "b", tiny)
    assert models.change(catalog) == [] and list(models.entries) == ["a", "b"]
    with pytest.raises(RequestError):
        catalog_of({}, {"models": {"a": {"path": 1}}}, Options(), 0, None)
