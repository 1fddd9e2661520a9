"""Errors: the right status, OpenAI's shape, and nothing that a client would retry for ever."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from satchel.cli.conformance.expect import Skip, Wrong, expect, fits, parsed, same
from satchel.cli.conformance.target import ConformanceTarget, raised, said

if TYPE_CHECKING:
    import httpx

PATH = "/v1/chat/completions"
ERROR = {"error": {"message": str, "type": str, "param": (str, None), "code": (str, None)}}
TOGETHER = 24  # concurrent requests of the `crowd` check
RELEASE = 10.0  # seconds after which an abandoned answer must have ended


def _error(found: httpx.Response, status: int) -> Any:
    expect(found.status_code == status, f"expected HTTP {status}, got {said(found)}")
    body = parsed(found.text, "the error")
    fits(body, ERROR)
    return body["error"]


def shape(target: ConformanceTarget) -> None:
    """A wrong value is 400 with message, type, param and code; code is text, and param names the field."""
    error = _error(target.http.post(PATH, json=target.chat(temperature="hot")), 400)
    same("type", error["type"], "invalid_request_error")
    same("param", error["param"], "temperature")


def ranges(target: ConformanceTarget) -> None:
    """Numbers outside their range are 400, never clamped."""
    for field, value in (("temperature", -1), ("top_p", 1.5), ("n", 0), ("max_tokens", -7), ("top_p", -0.1)):
        found = target.http.post(PATH, json=target.chat(**{field: value}))
        expect(found.status_code == 400, f"{field}={value}: expected HTTP 400, got {said(found)}")


def no_json(target: ConformanceTarget) -> None:
    """A body that is no JSON is 400."""
    headers = {"Content-Type": "application/json"}
    _error(target.http.post(PATH, content=b'{"model": ', headers=headers), 400)


def no_messages(target: ConformanceTarget) -> None:
    """A chat without messages, or with none in the list, is 400."""
    asked = target.chat()
    del asked["messages"]
    _error(target.http.post(PATH, json=asked), 400)
    _error(target.http.post(PATH, json=target.chat(messages=[])), 400)


def unknown_model(target: ConformanceTarget) -> None:
    """A model that is not there is 404 with the code model_not_found."""
    error = _error(target.http.post(PATH, json=target.chat(model="no-such-model")), 404)
    same("code", error["code"], "model_not_found")


def unknown_route(target: ConformanceTarget) -> None:
    """A route that is not there is 404, with an error in JSON."""
    _error(target.http.get("/v1/no-such-route"), 404)


def method(target: ConformanceTarget) -> None:
    """GET of a route that takes POST is 405."""
    found = target.http.get(PATH)
    expect(found.status_code == 405, f"expected HTTP 405, got {said(found)}")


def media(target: ConformanceTarget) -> None:
    """A body that says it is something else than JSON is 415."""
    body, headers = b"model=a", {"Content-Type": "application/x-www-form-urlencoded"}
    found = target.http.post(PATH, content=body, headers=headers)
    expect(found.status_code == 415, f"expected HTTP 415, got {said(found)}")


def too_large(target: ConformanceTarget) -> None:
    """A body that is announced with a terabyte is 413 before it is read."""
    import http.client

    where = urlsplit(target.url)
    kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
    connection = kind(where.hostname or "", where.port, timeout=10)
    headers = {"Content-Type": "application/json", "Content-Length": str(1 << 40)}
    if target.key:
        headers["Authorization"] = f"Bearer {target.key}"
    try:
        connection.request("POST", PATH, headers=headers)
        same("status", connection.getresponse().status, 413)
    except TimeoutError:
        raise Wrong("no answer within 10 s: the server waits for the body") from None
    finally:
        connection.close()


def context(target: ConformanceTarget) -> None:
    """A prompt that is longer than the context is 400 with the code context_length_exceeded."""
    words = [{"role": "user", "content": "a b c d " * (target.context // 3 + 100)}]
    error = _error(target.http.post(PATH, json=target.chat(messages=words)), 400)
    same("code", error["code"], "context_length_exceeded")


def context_stream(target: ConformanceTarget) -> None:
    """What goes wrong before the first token is an HTTP error for a stream too."""
    words = [{"role": "user", "content": "a b c d " * (target.context // 3 + 100)}]
    _error(target.http.post(PATH, json=target.chat(messages=words, stream=True)), 400)


def key(target: ConformanceTarget) -> None:
    """A wrong key, and none, are 401."""
    if not target.key:
        raise Skip("no --api-key was given")
    for headers in ({"Authorization": "Bearer wrong"}, {"Authorization": ""}):
        error = _error(target.http.post(PATH, json=target.chat(), headers=headers), 401)
        same("type", error["type"], "authentication_error")


def client(target: ConformanceTarget) -> None:
    """openai: a wrong value raises BadRequestError with the server's words, code and param."""
    bad = target.official("openai").BadRequestError
    call = lambda: target.openai.chat.completions.create(**target.chat(temperature=-1))  # noqa: E731
    error = raised(bad, call, "create()")
    same("param", error.param, "temperature")


def tried_once(target: ConformanceTarget) -> None:
    """openai: what is refused for good is not tried again, also what the server can't do."""
    sent: list[object] = []
    bad = target.official("openai").BadRequestError
    patient = target.openai_client(2, sent.append)
    for fields in ({"temperature": -1}, {"response_format": {"type": "xml"}}):
        sent.clear()
        raised(
            bad, lambda fields=fields: patient.chat.completions.create(**target.chat(**fields)), "create()"
        )
        same(f"requests for {fields}", len(sent), 1)


def crowd(target: ConformanceTarget) -> None:
    """Of many requests at once each is answered whole, or is 429 or 503 with Retry-After."""
    with ThreadPoolExecutor(TOGETHER) as pool:
        asked = (target.chat(max_tokens=4, seed=n) for n in range(TOGETHER))
        answers = list(pool.map(lambda body: target.http.post(PATH, json=body), asked))
    for found in answers:
        if found.status_code in (429, 503):
            expect(found.headers.get("retry-after"), f"{found.status_code} without Retry-After")
        else:
            expect(found.status_code == 200, f"expected HTTP 200, 429 or 503, got {said(found)}")


def disconnect(target: ConformanceTarget) -> None:
    """When clients go away their answers end, and their places are free."""
    asked = target.chat(max_tokens=100_000, stream=True, ignore_eos=True)
    if target.http.post(PATH, json=target.chat(ignore_eos=True, max_tokens=2)).status_code == 400:
        del asked["ignore_eos"]
    for _ in range(4):
        with target.http.stream("POST", PATH, json=asked | {"max_tokens": target.context - 200}) as found:
            next(found.iter_raw(), None)
    end = time.monotonic() + RELEASE
    while busy := _busy(target):
        expect(time.monotonic() < end, f"{busy} slots are still busy after {RELEASE:.0f} s")
        time.sleep(0.1)


def _busy(target: ConformanceTarget) -> int:
    found = target.http.get("/slots")
    if found.status_code != 200:
        raise Skip("the server has no /slots to look at")
    return sum(bool(slot["is_processing"]) for slot in found.json())
