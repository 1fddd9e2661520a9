"""Requests that broke other servers are refused in the API flavour's shape, and the server continues. Ids are
those of the list of malformed inputs.
"""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from waiting import SECONDS, happened, joined, until

pytest.importorskip("fastapi")

from satchel.runtime.api.options import Options
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.program import Program
from satchel.server.bodies import read_body
from satchel.server.log import JsonFormatter
from satchel.server.problem import Problem
from satchel.server.settings import ServerSettings

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
KEYS = ("first-key", "second-key")
POST = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def locked(bundled_model: Path, serving_of: object) -> Iterator[str]:
    """A server with keys and a loaded model."""
    with serving_of([bundled_model], Options(slots=2), ServerSettings(port=0, api_keys=KEYS)) as address:
        until(lambda: httpx.get(f"{address}/health").status_code == 200, "the model is not loaded")
        yield address


def raw(server: str, data: bytes, seconds: float = 20) -> bytes:
    """The server's response to these bytes, until it closes."""
    parts = urlsplit(server)
    with socket.create_connection((parts.hostname, parts.port), timeout=seconds) as wire:
        wire.sendall(data)
        found = b""
        try:
            while part := wire.recv(65536):
                found += part
        except TimeoutError:
            pass
        return found


def post(server: str, body: bytes | object, **headers: str) -> httpx.Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"content-type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
    return httpx.post(server + CHAT, content=data, headers=sent, timeout=60)


def alive(server: str) -> bool:
    return httpx.get(f"{server}/healthz", timeout=SECONDS).status_code == 200


H01 = {
    "empty object": b"{}",
    "array": b"[]",
    "null": b"null",
    "string": b'"x"',
    "number": b"1",
    "nothing": b"",
    "cut": b'{"messages": [{"role": "us',
    "no utf-8": b'{"messages": "\xff\xfe"}',
    "lone surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "nul": b'{"messages": \x00}',
    "bom": b"\xef\xbb\xbf{}",
    "same key twice": b'{"messages": [], "messages": []}',
    "deep": b"[" * 100_000,
    "deep and closed": b'{"a":' * 5000 + b"1" + b"}" * 5000,
}


@pytest.mark.model
@pytest.mark.parametrize("name", H01)
def test_h01_bodies_that_are_no_request(server: str, name: str) -> None:
    answer = post(server, H01[name])
    assert answer.status_code in (400, 415)
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert alive(server)


@pytest.mark.model
def test_h01_a_body_that_is_too_large(server: str) -> None:
    assert post(server, b'{"a": "' + b"x" * (17 << 20) + b'"}').status_code == 413
    assert alive(server)


def test_h01_a_large_body_is_checked_quickly() -> None:
    for body in (b"[" * 8_000_000, b"[]" * 4_000_000, b'"' + b'\\"' * 4_000_000, b'"a' * 4_000_000):
        with pytest.raises(Problem):
            read_body(body)
    read_body(json.dumps({"text": '[{"\\' * 1_000_000}).encode())


NUMBERS = {
    "temperature": (b"NaN", b"Infinity", b"-Infinity", b"1e400", b'"1"', b"true", b"[1]", b"-0.1", b"101"),
    "max_tokens": (b"1.5", b'"1"', b"true", b"9223372036854775808", b"1e400", b"-2"),
    "seed": (b"1.5", b"true", b"18446744073709551616", b"-2"),
    "top_k": (b"NaN", b"0.5", b"-2", b"4294967296"),
}


@pytest.mark.model
@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in NUMBERS.items() for v in values])
def test_h02_numbers_that_are_none(server: str, field: str, value: bytes) -> None:
    body = json.dumps(ASK).encode()[:-1] + b', "x": 1}'
    body = body.replace(b'"max_tokens": 2, ', b"").replace(b'"x": 1', b'"%s": %s' % (field.encode(), value))
    answer = post(server, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in (field, None)


@pytest.mark.model
def test_h02_minus_zero_is_zero(server: str) -> None:
    assert post(server, json.dumps(ASK).encode()[:-1] + b', "temperature": -0.0}').status_code == 200


@pytest.mark.model
@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * (10 << 20) + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 100_000 + b"\r\n",
        b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nx\r\n",
        POST + b"Content-Length: -5\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["header", "headers", "url", "chunked", "length", "tls"],
)
def test_h13_requests_that_are_no_http(server: str, data: bytes) -> None:
    try:
        answer = raw(server, data)
    except (ConnectionResetError, BrokenPipeError):
        answer = b""
    assert not answer or answer.split()[1] in (b"400", b"414", b"431")
    assert alive(server)


@pytest.mark.model
def test_h13_idle_and_slow_connections_do_not_keep_others_out(server: str) -> None:
    parts = urlsplit(server)
    held = [socket.create_connection((parts.hostname, parts.port)) for _ in range(200)]
    for wire in held[::2]:
        wire.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le")
    assert post(server, ASK).status_code == 200
    for wire in held:
        wire.close()
    assert alive(server)


@pytest.mark.model
@pytest.mark.parametrize(
    "path",
    [
        "//v1/models",
        "/v1/../health/../v1/models",
        "/v1/models/",
        "/V1/MODELS",
        "/v1/%6dodels",
        "/v1/models?x=/health",
        "/health/../v1/models",
        "/v1/models;/health",
        "/healthz/x",
    ],
)
def test_h14_no_path_goes_around_the_key(locked: str, path: str) -> None:
    parts = urlsplit(locked)
    wire = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=SECONDS)
    wire.putrequest("GET", path, skip_host=True)
    wire.putheader("Host", "localhost")
    wire.endheaders()
    answer = wire.getresponse()
    assert answer.status in (401, 404)
    assert b'"id"' not in answer.read()


@pytest.mark.model
def test_h14_an_absolute_target_and_a_host_with_a_path(locked: str) -> None:
    for data in (
        b"GET http://x/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost/health?\r\nConnection: close\r\n\r\n",
    ):
        assert raw(locked, data).split()[1] in (b"401", b"403", b"404", b"400", b"200")[:4]


@pytest.mark.model
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {KEYS[0]}"},
        {"authorization": f"Bearer {KEYS[0]}x"},
        {"authorization": f"Bearer {KEYS[0]}", "x-api-key": "wrong"},
        {"x-api-key": ""},
        {"authorization": "Bearer \u00fc".encode("latin-1").decode("latin-1")},
    ],
)
def test_h15_without_the_key_nothing_is_told(locked: str, headers: dict[str, str]) -> None:
    raw_headers = [(k.encode(), v.encode("latin-1")) for k, v in headers.items()]
    for path in ("/v1/models", "/metrics", "/models/unload", "/nothing/here"):
        answer = httpx.get(f"{locked}{path}?api_key={KEYS[0]}", headers=raw_headers)
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"
    assert httpx.get(f"{locked}/health").status_code == 200


@pytest.mark.model
@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_h15_each_key_opens(locked: str, header: str) -> None:
    for key in KEYS:
        value = f"Bearer {key}" if header == "authorization" else key
        assert httpx.get(f"{locked}/v1/models", headers={header: value}).status_code == 200


@pytest.mark.model
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"host": "localhost.evil.example:80"}, 403),
        ({"host": "127.0.0.1:1234"}, 200),
        ({"host": "[::1]:80"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost.evil.example"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "application/json; charset=utf-8"}, 200),
    ],
)
def test_h16_other_sites_cannot_call(server: str, headers: dict[str, str], status: int) -> None:
    sent = {"content-type": "application/json"} | headers
    answer = httpx.post(server + CHAT, content=json.dumps(ASK), headers=sent, timeout=60)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.model
def test_h16_the_own_page_can_call_and_a_preflight_is_refused(server: str) -> None:
    assert post(server, ASK, origin=server).status_code == 200
    asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    answer = httpx.options(server + CHAT, headers=asked)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.model
def test_h17_errors_tell_nothing_of_the_machine(server: str) -> None:
    told = [post(server, body).text for body in H01.values()]
    paths = ("/nothing", "/v1/models/../../etc/passwd", "/v1/models/x")
    told += [httpx.get(server + path).text for path in paths]
    for text in told:
        for secret in (str(Path.home()), "Traceback", ".py", " at 0x", "site-packages"):
            assert secret not in text


@pytest.mark.model
def test_h21_what_is_loaded_needs_the_key(locked: str) -> None:
    for path in ("/models/load", "/models/unload", "/config/reload"):
        assert httpx.post(f"{locked}{path}", json={"model": "x"}).status_code == 401


@pytest.mark.model
def test_h23_nothing_that_was_said_is_logged(locked: str, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("satchel").propagate = True
    with caplog.at_level(logging.DEBUG, "satchel"):
        key = {"authorization": f"Bearer {KEYS[0]}"}
        body = {
            "messages": [{"role": "user", "content": "my-secret-word"}],
            "max_tokens": 3,
            "stop": ["my-stop-word"],
        }
        httpx.post(locked + CHAT, json=body, headers=key, timeout=60)
        httpx.post(locked + CHAT, json=body | {"temperature": "my-secret-word"}, headers=key, timeout=60)
    lines = [JsonFormatter().format(r) for r in caplog.records]
    assert any(json.loads(line).get("route") == CHAT for line in lines)
    assert not any(word in line for line in lines for word in ("my-secret-word", "my-stop-word", *KEYS))


@pytest.mark.model
def test_keys_do_not_share_what_is_cached(locked: str) -> None:
    def cached(key: str, salt: str = "") -> int:
        body = {
            "messages": [{"role": "user", "content": "tell me about boats " * 20}],
            "max_tokens": 1,
            "cache_salt": salt,
        }
        answer = httpx.post(locked + CHAT, json=body, headers={"x-api-key": key}, timeout=60).json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached(KEYS[0]) == 0
    assert cached(KEYS[0]) > 0
    assert cached(KEYS[1]) == 0
    assert cached(KEYS[0], "other") == 0


@pytest.mark.model
def test_health_is_told_while_a_long_prompt_is_read(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine blocks in the prompt's first step, and health probes are answered."""
    long = {"messages": [{"role": "user", "content": "word " * 1900}], "max_tokens": 1}
    post(server, ASK | {"max_tokens": 1})  # loads the model
    begun, go, fill = threading.Event(), threading.Event(), Engine.fill

    def held(self: Engine, *args: Any, **options: Any) -> Program:
        begun.set()
        happened(go, "health is told")
        return fill(self, *args, **options)

    monkeypatch.setattr(Engine, "fill", held)
    reading = threading.Thread(target=post, args=(server, long))
    reading.start()
    try:
        happened(begun, "the first step of the prompt")
        for path in ("/healthz", "/readyz", "/healthz"):
            assert httpx.get(f"{server}{path}").status_code == 200
        assert reading.is_alive()
    finally:
        go.set()
    joined(reading, "the answer to the long prompt")


@pytest.mark.model
def test_metrics_count_what_was_done(server: str) -> None:
    def value(name: str) -> float:
        lines = httpx.get(f"{server}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    before = value("satchel_generated_tokens_total"), value('satchel_http_requests_total{method="POST"')
    post(server, ASK | {"max_tokens": 5, "ignore_eos": True})
    assert value("satchel_generated_tokens_total") == before[0] + 5
    assert value('satchel_http_requests_total{method="POST"') == before[1] + 1
    assert value("satchel_time_to_first_token_seconds_count") > 0


@pytest.mark.model
def test_h19_a_vectors_text_is_no_other_keys_cache(locked: str) -> None:
    text = "a text of which one key wants the vector " * 20

    def cached(key: str) -> int:
        asked = {"prompt": text, "max_tokens": 1}
        answer = httpx.post(f"{locked}/v1/completions", json=asked, headers={"x-api-key": key}, timeout=60)
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    body = {"input": text, "pooling": "last"}
    for path in ("/v1/embeddings", "/api/embed"):
        asked = body if path.startswith("/v1") else {"model": "satchel-40m-q6_k", "input": text}
        assert (
            httpx.post(locked + path, json=asked, headers={"x-api-key": KEYS[0]}, timeout=60).status_code
            == 200
        )
    assert cached(KEYS[1]) == 0
