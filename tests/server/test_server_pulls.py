"""A08 of the hostile requests: the hosts that a client's pulls can reach, and the bytes that they may
fetch.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import hub_server
import pytest
from waiting import until

pytest.importorskip("fastapi")

from satchel.errors import RequestError
from satchel.runtime.api.options import Options
from satchel.server.app import create_app
from satchel.server.catalog import Catalog, Served
from satchel.server.models import Models
from satchel.server.pulls import Pulls
from satchel.server.settings import ServerSettings
from satchel.store import Store
from satchel.store.names import parse
from satchel.store.policy import FREE, Policy
from satchel.store.web import Web, is_public

KEYS = ("one", "two")


@pytest.fixture
def hub(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hub_server.Hub]:
    """A registry of the test's, as configured by the operator, and a store of its own."""
    with hub_server.registries(tmp_path, monkeypatch) as running:
        for name in ("small", "other", "third"):
            running.put_ollama(f"library/{name}", "latest", tiny.read_bytes())
        yield running


class Wire:
    """The admins of a server, by key."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def pull(self, name: str, key: str = "one", stream: bool = False) -> httpx.Response:
        body = {"model": name, "stream": stream}
        return await self.client.post("/api/pull", json=body, headers={"x-api-key": key}, timeout=60)


def served(tiny: Path, work: Any, **settings: Any) -> None:
    async def all_of_it() -> None:
        models = Models(Catalog({"tiny": Served("tiny", tiny, Options())}, {}))
        app = create_app(models, ServerSettings(admin_keys=KEYS, **settings))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await work(Wire(client))
        await models.close()

    asyncio.run(all_of_it())


HOSTS = (
    "127.0.0.1", "localhost", "0.0.0.0", "169.254.169.254", "10.0.0.1", "2130706433", "0x7f.1", "127.1",
    "metadata.google.internal", "example.com", "evil.example",
)  # fmt: skip


def test_a08_a_host_that_a_client_names_is_not_asked(
    hub: hub_server.Hub, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: touched.append(args) or [])
    monkeypatch.setattr(socket, "create_connection", lambda *args, **more: touched.append(args))

    async def work(wire: Wire) -> None:
        answers = set()
        for host in HOSTS:
            for name in (f"ollama:{host}/x/y", f"{host}/x/y:latest"):
                answer = await wire.pull(name)
                answers.add((answer.status_code, answer.text))
        assert {status for status, _ in answers} == {400} and len(answers) == 1
        assert "--registry" in answers.pop()[1]
        for name in ("https://127.0.0.1/m.gguf", "http://127.0.0.1/m.gguf", "file:///etc/passwd"):
            assert (await wire.pull(name)).status_code == 400
        streamed = await wire.pull("ollama:127.0.0.1/x/y", stream=True)
        assert "--registry" in streamed.text

    served(tiny, work)
    assert touched == [] and hub.asked == []


def test_a08_open_and_closed_ports_are_one_answer(hub: hub_server.Hub, tiny: Path) -> None:
    """A registry redirects to an open port, a closed one, an unknown name: the error is the same."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening, closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        opened, closed = listening.getsockname()[1], bound.getsockname()[1]

        async def work(wire: Wire) -> None:
            answers = []
            for where in (
                f"127.0.0.1:{opened}", f"127.0.0.1:{closed}", f"[::1]:{opened}", f"localhost:{opened}",
                f"[::ffff:127.0.0.1]:{opened}", f"[64:ff9b::7f00:1]:{closed}", f"[::127.0.0.1]:{opened}",
                "169.254.169.254", "168.63.129.16", "name.invalid", f"0.0.0.0:{opened}", f"127.1:{opened}",
            ):  # fmt: skip
                path = "/v2/library/small/manifests/latest"
                hub.files[path] = hub_server.Served(redirect=f"https://{where}/x", ranges=False)
                answer = await wire.pull("small")
                answers.append((answer.status_code, answer.text))
            assert answers[0][0] == 400 and set(answers) == {answers[0]}, set(answers)
            assert "no public address" in answers[0][1]

        served(tiny, work)
        listening.settimeout(0)
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_a08_the_configured_registry_and_a_local_user_are_free(
    hub: hub_server.Hub, tiny: Path, tmp_path: Path
) -> None:
    async def work(wire: Wire) -> None:
        assert (await wire.pull("small")).status_code == 200

    served(tiny, work)
    name = parse("ollama:10.0.0.1/x/y")
    FREE.check(name, {})
    assert FREE.free and not Policy(()).free
    with pytest.raises(RequestError, match="none of this server's registries"):
        Policy(()).check(name, {})
    Policy(("10.0.0.1",)).check(name, {})
    Policy(()).check(parse("ollama:registry.ollama.ai/x/y"), {})
    for url in ("https://example.com/m.gguf", "https://10.0.0.1/m.gguf"):
        with pytest.raises(RequestError, match="registries"):
            Policy(("10.0.0.1",)).check(parse(url), {})


def test_a08_a_registry_that_may_be_named_must_still_be_public(
    hub: hub_server.Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def resolve(host: str, port: int, **more: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    store = Store(tmp_path / "store", policy=Policy(("models.example",)))
    with pytest.raises(RequestError, match="no public address"):
        store.pull("ollama:models.example/x/y")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("::127.0.0.1", False),
        ("::ffff:0:127.0.0.1", False),
        ("::ffff:169.254.169.254", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("64:ff9b:1::a00:1", False),
        ("2002:7f00:1::", False),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", False),
        ("fec0::1", False),
        ("fd00:ec2::254", False),
        ("ff02::1", False),
        ("100::1", False),
        ("169.254.169.254", False),
        ("100.100.100.200", False),
        ("192.0.0.192", False),
        ("168.63.129.16", False),
        ("::ffff:168.63.129.16", False),
        ("240.0.0.1", False),
        ("198.18.0.1", False),
        ("64:ff9b::5db8:d822", True),
        ("2a00:1450:4001::1", True),
    ],
)
def test_a08_what_a_public_address_is(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_a08_what_is_refused_tells_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: int, **more: Any) -> list[Any]:
        if host == "none.example":
            raise socket.gaierror("no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.1.2.3", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    told = set()
    with closing(Web(silent=True)) as web:
        for host in ("inside.example", "none.example", "10.1.2.3"):
            with pytest.raises(RequestError) as error, web.open(f"https://{host}/x"):
                pass
            told.add(str(error.value))
    assert len(told) == 1 and "10.1.2.3" not in told.pop()


def test_a08_a_key_pulls_as_much_as_it_may(hub: hub_server.Hub, tiny: Path) -> None:
    size = tiny.stat().st_size

    async def work(wire: Wire) -> None:
        assert [(await wire.pull(name)).status_code for name in ("small", "other")] == [200, 200]
        assert (await wire.pull("small")).status_code == 200, "what is there costs nothing"
        refused = await wire.pull("third")
        assert refused.status_code == 400 and "--pull-quota" in refused.text
        assert "/v2/library/third/blobs" not in "".join(hub.paths())
        assert (await wire.pull("third", "two")).status_code == 200, "another key has its own"
        gone = await wire.client.request(
            "DELETE", "/api/delete", json={"model": "other"}, headers={"x-api-key": "two"}
        )
        assert gone.status_code == 200
        hub.put_ollama("library/fourth", "latest", tiny.read_bytes())
        assert (await wire.pull("fourth")).status_code == 200

    served(tiny, work, pull_bytes=2 * size)


def test_a08_a_key_has_so_many_pulls_at_once(hub: hub_server.Hub, tiny: Path) -> None:
    go, asked = threading.Event(), threading.Semaphore(0)

    def before(path: str) -> None:
        if "manifests" in path:
            asked.release()
            assert go.wait(60)

    hub.before = before

    async def work(wire: Wire) -> None:
        first = [asyncio.create_task(wire.pull(name)) for name in ("small", "other")]
        await asyncio.to_thread(until, lambda: asked._value == 2, "both pulls are under way")
        third = await wire.pull("third")
        assert third.status_code == 503 and "retry-after" in third.headers
        other = asyncio.create_task(wire.pull("third", "two"))
        go.set()
        assert [(await task).status_code for task in (*first, other)] == [200, 200, 200]
        assert (await wire.pull("third")).status_code == 200

    served(tiny, work)


def test_a08_a_cut_pull_counts_once() -> None:
    pulls = Pulls(ServerSettings(pull_bytes=10, pulls=1))
    for _ in range(3):
        with pulls.begun("a") as policy:
            policy.admit("m", 10)
            with pytest.raises(RequestError, match="under way"), pulls.begun("a"):
                pass
    with pulls.begun("a") as policy, pytest.raises(RequestError, match="0 are left"):
        policy.admit("n", 1)
    pulls.deleted("m")
    with pulls.begun("a") as policy:
        policy.admit("n", 10)
