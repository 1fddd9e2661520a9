"""Row 9 (roles of keys) and row 16 (requests from pages of other sites) of the hostile requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.datastructures import Headers
from tiny_file import write_model
from waiting import until

pytest.importorskip("fastapi")

from satchel.cli.serving import ServerOptions
from satchel.errors import RequestError
from satchel.runtime.api.defaults import RequestDefaults
from satchel.runtime.api.generate_options import GenerateKwargs
from satchel.runtime.api.options import Options
from satchel.server import app as app_module
from satchel.server.app import create_app
from satchel.server.asked import generate_kwargs
from satchel.server.bodies import BodyRoute
from satchel.server.catalog import Catalog, Served
from satchel.server.flavour import routed
from satchel.server.generation import GenerationRequest, Text
from satchel.server.guard import RequestGuard
from satchel.server.models import Models
from satchel.server.problem import Problem
from satchel.server.reload import Reload
from satchel.server.roles import (
    ADMIN,
    PUBLIC,
    USER,
    Role,
    RoleTable,
    is_local,
    needs,
    read_keys,
    role_of,
)
from satchel.server.settings import ServerSettings

USER_KEY, ADMIN_KEY = "a-users-key", "an-admins-key"
KEYS = {"api_keys": (USER_KEY,), "admin_keys": (ADMIN_KEY,)}
# Every route that changes or reveals something of other callers.
ADMINS = {
    ("POST", "/models/load"), ("POST", "/models/unload"), ("POST", "/config/reload"), ("GET", "/aliases"),
    ("POST", "/lora-adapters"), ("POST", "/props"), ("GET", "/metrics"), ("GET", "/fleet"),
    ("POST", "/fleet/scaling"),
    ("POST", "/fleet/members"), ("POST", "/fleet/members/{member}/drain"),
    ("POST", "/fleet/members/{member}/replace"), ("DELETE", "/fleet/members/{member}"),
    ("POST", "/api/pull"), ("POST", "/api/copy"), ("DELETE", "/api/delete"), ("POST", "/api/push"),
    ("POST", "/api/create"), ("POST", "/api/blobs/{digest}"), ("HEAD", "/api/blobs/{digest}"),
}  # fmt: skip
OPEN = {
    "/healthz", "/health", "/v1/health", "/readyz", "/", "/dashboard", "/page/options", "/page/{path:path}",
}  # fmt: skip


def asked(
    app: FastAPI, method: str, path: str, client: tuple[str, int] | None = ("127.0.0.1", 9), **more: Any
) -> httpx.Response:
    """One request to the application, from a client with this address."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=client)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as wire:
            return await wire.request(method, path, **more)

    return asyncio.run(ask())


def application(**settings: Any) -> FastAPI:
    return create_app(Models(Catalog({}, {})), ServerSettings(**settings))


def key(value: str) -> dict[str, str]:
    return {"authorization": f"Bearer {value}"}


def declared() -> Iterator[tuple[str, str, Role | None]]:
    """(method, path, role) of every route."""
    for module in routed():
        for route in module.router.routes:
            for method in route.methods:
                yield method, route.path, role_of(route)


def test_a09_every_route_says_who_may_call_it() -> None:
    found = list(declared())
    assert len(found) > 60
    assert [route for route in found if route[2] is None] == []
    assert {(method, path) for method, path, role in found if role is ADMIN} == ADMINS
    assert {path for _, path, role in found if role is PUBLIC} == OPEN


def test_a05_every_route_with_a_body_takes_it_as_it_was_parsed() -> None:
    """FastAPI's own routes would parse and validate a body of any size on the event loop."""
    found = [r for module in routed() for r in module.router.routes if getattr(r, "body_field", None)]
    assert len(found) > 20
    assert [r for r in found if not isinstance(r, BodyRoute)] == []


def test_a_server_without_models_says_so() -> None:
    with pytest.raises(Problem, match="there is none"):
        Models(Catalog({}, {})).entry("")


def test_a09_a_route_without_a_role_keeps_the_server_from_starting(monkeypatch: Any) -> None:
    class Module:
        router = APIRouter()

    Module.router.add_api_route("/forgotten", lambda: None)
    monkeypatch.setattr(app_module, "routed", lambda: iter([Module]))
    with pytest.raises(TypeError, match=r"/forgotten.*declares no role"):
        application()


@pytest.mark.parametrize(("method", "path"), sorted(ADMINS))
def test_a09_a_users_key_is_no_admin(method: str, path: str) -> None:
    app = application(**KEYS)
    path = path.replace("{digest}", f"sha256:{'0' * 64}")
    assert asked(app, method, path).status_code == 401
    # For any body, and before it is read.
    for more in ({}, {"json": {"model": "x"}}, {"content": b"{" * 1000, "headers": {"content-type": "a/b"}}):
        headers = {**more.pop("headers", {}), **key(USER_KEY)}
        answer = asked(app, method, path, headers=headers, **more)
        assert answer.status_code == 403
        error = answer.json() if method != "HEAD" else {}
        if path.startswith("/api/") and error:
            assert set(error) == {"error"} and "admin" in error["error"]
        elif error:
            assert error["error"]["type"] == "permission_error" and error["error"]["code"] == "admin_only"
        assert USER_KEY not in answer.text
    assert asked(app, method, path, headers=key(ADMIN_KEY)).status_code not in (401, 403)


def test_a09_anthropics_clients_read_the_refusal() -> None:
    headers = key(USER_KEY) | {"anthropic-version": "2023-06-01"}
    answer = asked(application(**KEYS), "POST", "/models/load", json={"model": "x"}, headers=headers)
    assert answer.status_code == 403
    assert answer.json()["type"] == "error" and answer.json()["error"]["type"] == "permission_error"


@pytest.mark.parametrize(
    "path",
    ["//models/load", "/models//load", "/models/load/", "/./models/load", "/models/%6coad", "/MODELS/LOAD"],
)
def test_a09_no_spelling_of_a_path_goes_around_the_role(path: str) -> None:
    answer = asked(application(**KEYS), "POST", path, json={"model": "x"}, headers=key(USER_KEY))
    assert answer.status_code in (307, 403, 404)


def test_a09_the_second_look_is_at_the_route_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the table named another route than the one that answers, the answering route's own role would
    count.
    """
    monkeypatch.setattr(RoleTable, "role", lambda self, scope: PUBLIC)
    assert asked(application(**KEYS), "POST", "/models/load", json={"model": "x"}).status_code == 403


def test_a09_without_keys_this_machine_is_admin_and_nobody_else() -> None:
    app, load = application(), ("POST", "/models/load")
    near = ("127.0.0.1", 5), ("127.8.9.10", 5), ("::1", 5), ("::ffff:127.0.0.1", 5)
    far = ("10.0.0.1", 5), ("203.0.113.9", 5), ("::ffff:10.0.0.1", 5), ("fe80::1%lo", 5), ("testclient", 5)
    for client in near:
        assert asked(app, *load, client, json={}).status_code == 400
    for client in far:
        assert asked(app, *load, client, json={}).status_code == 403
        assert asked(app, "GET", "/v1/models", client).status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        {"x-forwarded-for": "127.0.0.1"},
        {"x-forwarded-for": ""},
        {"forwarded": "for=127.0.0.1"},
        {"x-real-ip": "127.0.0.1"},
        {"via": "1.1 proxy"},
        {"x-forwarded-host": "localhost"},
    ],
)
def test_a09_who_comes_through_a_proxy_is_not_of_this_machine(header: dict[str, str]) -> None:
    assert asked(application(), "POST", "/models/load", json={}, headers=header).status_code == 403


def test_a09_a_unix_socket_is_of_this_machine_and_a_lost_connection_is_not() -> None:
    headers = httpx.Headers()
    assert is_local({"type": "http", "client": None, "server": ("/run/satchel.sock", None)}, headers)  # type: ignore[arg-type]
    assert not is_local({"type": "http", "client": None, "server": ("0.0.0.0", 80)}, headers)  # type: ignore[arg-type]
    assert not is_local({"type": "http", "client": None, "server": None}, headers)  # type: ignore[arg-type]


def test_a09_a_line_of_the_key_file_is_a_key_and_its_role() -> None:
    lines = ["", "# admin", "one", "two user", "  three\tadmin ", "one", "four admin 2.5", "five user 1"]
    assert read_keys(lines) == {
        "one": (USER, 1), "two": (USER, 1), "three": (ADMIN, 1), "four": (ADMIN, 2.5), "five": (USER, 1),
    }  # fmt: skip
    assert read_keys(["\ufeffone admin"]) == {"one": (ADMIN, 1)}


@pytest.mark.parametrize("share", ["0", "-1", "nan", "inf", "101", "much", "1,5"])
def test_a_share_that_is_none_is_refused_with_its_line(share: str) -> None:
    with pytest.raises(RequestError, match=r"key 2: share: expected a number from 0\.01 to 100"):
        read_keys(["first", f"key user {share}"])
    with pytest.raises(RequestError, match="key 2: it occurs twice, with two roles or shares"):
        read_keys(["first user 2", "first"])


def test_a_key_s_share_is_the_weight_of_its_requests(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("light user 0.5\nplain\nheavy admin 4\n")
    file.chmod(0o600)
    settings = ServerOptions(ServerSettings(api_keys=("other",)), api_key_file=file).settings()
    assert settings.key_shares == {"light": 0.5, "heavy": 4.0}
    guard = RequestGuard(Starlette(), settings, RoleTable([]))
    for key, share in {"light": 0.5, "plain": 1.0, "heavy": 4.0, "other": 1.0}.items():
        caller = guard._caller({"type": "http"}, Headers({"authorization": f"Bearer {key}"}), USER)
        assert caller.share == share
        model: Any = SimpleNamespace(
            slots=1,
            tokenizer=SimpleNamespace(vocab_size=9),
            request_defaults=RequestDefaults(),
        )
        wanted = GenerationRequest("m", Text("x"), GenerateKwargs(max_tokens=1))
        assert generate_kwargs(model, wanted, caller, None)["weight"] == share


@pytest.mark.parametrize(
    "line", ["key root", "key admin 2 3", "key 2", "admin", "user", "admin admin", "key Admin"]
)
def test_a09_a_line_that_may_mean_something_else_is_refused(line: str) -> None:
    with pytest.raises(RequestError, match="key 2: ") as error:
        read_keys(["first", line])
    assert "key Admin" not in str(error.value)
    with pytest.raises(RequestError, match="occurs twice"):
        read_keys(["first", "first admin"])


def test_a09_a_declared_role_stays_with_its_function() -> None:
    def endpoint() -> None: ...

    assert needs(ADMIN)(endpoint) is endpoint
    assert Role.PUBLIC < Role.USER < Role.ADMIN


SITE = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
VISIT = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


def test_a16_a_page_of_another_site_calls_nothing() -> None:
    """A GET without an Origin: an image, a script, a frame, a link, a form."""
    app = application()
    for method, path, role in declared():
        path = path.replace("{path:path}", "css/page.css").replace("{name:path}", "x").replace("{slot}", "0")
        for site in ("cross-site", "same-site", "unheard-of"):
            answer = asked(app, method, path, headers=SITE | {"sec-fetch-site": site})
            assert answer.status_code == 403, (method, path)
        followed = asked(app, method, path, headers=VISIT).status_code != 403
        assert followed is (role is PUBLIC and method in ("GET", "HEAD")), (method, path)
    frame = VISIT | {"sec-fetch-dest": "iframe"}
    assert asked(app, "GET", "/", headers=frame).status_code == 403


def test_a16_our_own_page_people_and_programs_call() -> None:
    app = application(origins=("https://app.example",))
    for site in ("same-origin", "none"):
        assert asked(app, "GET", "/v1/models", headers={"sec-fetch-site": site}).status_code == 200
    assert asked(app, "GET", "/v1/models").status_code == 200
    named = SITE | {"sec-fetch-mode": "cors", "origin": "https://app.example"}
    assert asked(app, "GET", "/v1/models", headers=named).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "0.0.0.0", ""]
)
def test_a16_without_a_key_the_servers_name_is_asked_for(host: str) -> None:
    """DNS rebinding: a page whose name resolves to this machine is same-origin, so only the Host header
    reveals it.
    """
    app = application(hosts=())
    for method, path in (("POST", "/v1/chat/completions"), ("POST", "/config/reload"), ("GET", "/v1/models")):
        headers = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
        assert asked(app, method, path, headers=headers, json={}).status_code == 403
    assert asked(application(**KEYS, hosts=()), "GET", "/v1/models", headers=key(USER_KEY)).status_code == 200


@pytest.fixture
def two(tmp_path: Path) -> Catalog:
    """A model that is not preloaded, and an alias of it."""
    path = write_model(tmp_path / "tiny.gguf")
    options = Options(slots=1, context=64)
    served = [Served("first", path, options, preload=True), Served("second", path, options)]
    return Catalog({one.name: one for one in served}, {})


def test_a16_reading_changes_nothing(two: Catalog) -> None:
    models = Models(two)
    app = create_app(models, ServerSettings())
    gets = [path for method, path, _ in declared() if method == "GET"]
    gets = [path.replace("{path:path}", "x").replace("{name:path}", "second") for path in gets]

    async def ask() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as wire:
            await models.preload()
            used = models.entries["first"].used
            for path in gets:
                answer = await wire.get(path, params={"model": "second"})
                if path in ("/props", "/slots", "/lora-adapters"):
                    assert answer.status_code == 409 and "not loaded" in answer.text
                    assert (await wire.get(path)).status_code == 200
            assert models.entries["second"].state == "unloaded" and not models.entries["second"].tried
            assert models.entries["first"].used == used, "looking at a model does not keep it loaded"
            await models.close()

    asyncio.run(ask())


def test_a16_a_load_under_way_is_waited_for(two: Catalog) -> None:
    models = Models(two)

    async def ask() -> None:
        async with asyncio.timeout(60):
            loading = asyncio.create_task(models.preload())
            async with models.look("") as lease:
                assert lease.name == "first"
            await loading
            await models.close()

    asyncio.run(ask())


def test_a09_how_long_a_model_stays_is_an_admins(two: Catalog) -> None:
    models = Models(two)
    app = create_app(models, ServerSettings(**KEYS))

    async def ask() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as wire:
            entry, body = models.entries["first"], {"model": "first", "keep_alive": -1, "stream": False}
            told = await wire.post("/api/generate", json=body, headers=key(USER_KEY), timeout=60)
            assert "keep_alive" in told.json()["warnings"][0] and entry.keep == 0
            for route, more in (("/api/embed", {"input": "a"}), ("/api/generate", {"prompt": "a"})):
                more |= {"model": "first", "keep_alive": 7, "stream": False, "options": {"num_predict": 1}}
                if route == "/api/embed":
                    del more["stream"]
                told = await wire.post(route, json=more, headers=key(USER_KEY), timeout=60)
                assert entry.keep == 0 and "keep_alive" in told.text, told.text
            body["keep_alive"] = 0
            for route in ("/api/generate", "/api/chat"):
                assert (await wire.post(route, json=body, headers=key(USER_KEY))).status_code == 403
            assert entry.state == "loaded"
            assert (await wire.post("/api/generate", json=body, headers=key(ADMIN_KEY))).status_code == 200
            assert entry.state == "unloaded"
            await models.close()

    asyncio.run(ask())


def test_the_configuration_is_read_off_the_loop_and_once_for_all_who_wait() -> None:
    """Because a reload may hash whole models."""
    go, readings, loop = threading.Event(), list[int](), threading.get_ident()

    def read() -> Catalog:
        readings.append(threading.get_ident())
        assert go.wait(60)
        return Catalog({}, {})

    async def ask() -> None:
        models = Models(Catalog({}, {}))
        app = create_app(models, ServerSettings(), Reload(read, models))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as wire:
            first = asyncio.create_task(wire.post("/config/reload"))
            await asyncio.to_thread(until, lambda: bool(readings), "the first reading")
            others = [asyncio.create_task(wire.post("/config/reload")) for _ in range(20)]
            assert (await wire.get("/healthz")).status_code == 200
            assert not any(task.done() for task in (first, *others))
            go.set()
            assert {(await task).status_code for task in (first, *others)} == {200}

    asyncio.run(ask())
    assert len(readings) == 2 and loop not in readings


def test_a_configuration_that_is_wrong_changes_nothing() -> None:
    def read() -> Catalog:
        raise RequestError("config.toml: wrong")

    models = Models(Catalog({}, {}))
    app = create_app(models, ServerSettings(), Reload(read, models))
    for _ in range(2):
        assert asked(app, "POST", "/config/reload").status_code == 400
