"""Streams: characters and stop texts are never split, errors are in the right place, thinking has its own
field.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from chat_model import write_chat_model
from starlette.types import Message
from waiting import SECONDS, until

from satchel.errors import DeviceError
from satchel.formats.chat import CallArguments, CallBegin, CallEnd, Content, Reasoning
from satchel.runtime.api.options import Options
from satchel.server.app import create_app
from satchel.server.catalog import catalog_of
from satchel.server.models import Models
from satchel.server.openai.response_output import ResponseOutput
from satchel.server.openai.thinking import Placed
from satchel.server.protocol import ResponseWriter
from satchel.server.run import listen
from satchel.server.settings import ServerSettings
from satchel.server.stream import PIECE, Stream
from satchel.store.resolve import default_model

HI = [{"role": "user", "content": "hi"}]


def stream(server: str, path: str, **body: Any) -> list[dict[str, Any]]:
    text = httpx.post(f"{server}{path}", json={**body, "stream": True}, timeout=60).content
    parts = [part for part in text.split(b"\n\n") if part and not part.startswith(b":")]  # pings are comments
    lines = [part.rpartition(b"data: ")[2] for part in parts]
    return [json.loads(line.decode()) for line in lines if line != b"[DONE]"]


def said(chunks: list[dict[str, Any]]) -> str:
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c.get("choices"))


@pytest.mark.model
def test_no_character_comes_in_halves(server: str, in_turns: None) -> None:
    words = "né→日本語😀\u2028\u0085end"
    form = {"structured_outputs": {"choice": [words]}}
    chunks = stream(server, "/v1/chat/completions", messages=HI, max_tokens=200, **form)
    assert said(chunks) == words and len(chunks) > 5
    raw = httpx.post(
        f"{server}/v1/chat/completions", json={"messages": HI, "stream": True, **form}, timeout=60
    ).text
    assert "\ufffd" not in raw and all(line.startswith("data: ") for line in raw.splitlines() if line)


@pytest.mark.model
@pytest.mark.parametrize("stop", ["tche", "Satchel", "m Sat", "l, a"])
def test_no_part_of_a_stop_text_leaks(server: str, stop: str) -> None:
    ask = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 12, "temperature": 0}
    whole = said(stream(server, "/v1/chat/completions", **ask))
    assert stop in whole
    chunks = stream(server, "/v1/chat/completions", **ask, stop=[stop])
    assert said(chunks) == whole.partition(stop)[0]
    assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == "stop"


@pytest.mark.model
@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_hangs_up_is_no_failure(
    server: str, streams: bool, caplog: pytest.LogCaptureFixture
) -> None:
    body = json.dumps({"messages": HI, "max_tokens": 1500, "ignore_eos": True, "stream": streams})
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    place = urlsplit(server)

    def busy() -> bool:
        return any(slot["is_processing"] for slot in httpx.get(f"{server}/slots").json())

    with caplog.at_level("WARNING"):
        with socket.create_connection((place.hostname, place.port), timeout=SECONDS) as wire:
            wire.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            until(busy, "the answer has not begun")
        until(lambda: not busy(), "the answer goes on")
        assert httpx.get(f"{server}/healthz").status_code == 200  # all earlier log lines have been written
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


@pytest.mark.model
def test_how_far_a_prompt_is_comes_before_its_answer(server: str) -> None:
    ask = {"messages": [{"role": "user", "content": "word " * 600}], "max_tokens": 2}
    chunks = stream(server, "/v1/chat/completions", **ask, return_progress=True, timings_per_token=True)
    told = [c["prompt_progress"] for c in chunks if "prompt_progress" in c]
    assert told and told[-1]["processed"] <= told[-1]["total"] and "prompt_progress" in chunks[0]
    assert any("timings" in c for c in chunks if c["choices"] and c["choices"][0]["delta"].get("content"))


@pytest.mark.model
def test_usage_may_come_with_every_chunk(server: str, in_turns: None) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = stream(server, "/v1/chat/completions", messages=HI, max_tokens=3, stream_options=options)
    counts = [c["usage"]["completion_tokens"] for c in chunks if "usage" in c]
    assert counts == sorted(counts) and len(counts) > 1 and chunks[-1]["choices"] == []


@pytest.fixture
def breaking() -> Iterator[tuple[str, Models]]:
    """A server whose models the test can change."""
    path = default_model()
    models = Models(catalog_of({path.stem: path}, {}, Options(slots=2, context=256), 0, None), 0)
    settings = ServerSettings(port=0)
    bound = listen(settings.host, settings.port, settings)
    running = uvicorn.Server(uvicorn.Config(create_app(models, settings), log_level="critical"))
    thread = threading.Thread(target=lambda: asyncio.run(running.serve([bound])), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{bound.getsockname()[1]}", models
    running.should_exit = True
    thread.join(SECONDS)


@pytest.mark.model
def test_an_error_has_its_place(breaking: tuple[str, Models], in_turns: None) -> None:
    """Before the first token it is an HTTP error, after it an event and then the end."""
    server, models = breaking
    ask = {"messages": HI, "max_tokens": 50, "ignore_eos": True}
    stream(server, "/v1/chat/completions", **{**ask, "max_tokens": 1})
    loaded = models.entry("").model
    assert loaded is not None
    steps, after = [0], [0]

    def watch(work: object) -> None:
        steps[0] += 1
        if steps[0] > after[0]:
            raise DeviceError("the engine broke")

    loaded.model.service.watch = watch  # type: ignore[attr-defined]
    early = httpx.post(f"{server}/v1/chat/completions", json={**ask, "stream": True}, timeout=SECONDS)
    assert early.status_code == 500 and early.json()["error"]["type"] == "server_error"
    for path, body in (
        ("/v1/chat/completions", ask),
        ("/v1/completions", {"prompt": "x", "max_tokens": 50, "ignore_eos": True}),
        ("/v1/responses", {"input": "hi", "ignore_eos": True}),
        ("/completion", {"prompt": "x", "n_predict": 50, "ignore_eos": True}),
    ):
        steps[0], after[0] = 0, 5
        chunks = stream(server, path, **body)
        assert "engine broke" in chunks[-1]["error"]["message"]
        assert len(chunks) > 1, "text came before"
        assert not any("error" in c and c["error"] for c in chunks[:-1])
    loaded.model.service.watch = None  # type: ignore[attr-defined]
    assert said(stream(server, "/v1/chat/completions", **ask))


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory, serving_of: Any) -> Iterator[str]:
    """A server of a tiny random model whose template supports thinking."""
    path = write_chat_model(tmp_path_factory.mktemp("model") / "thinker.gguf")
    with serving_of([path], Options(slots=2), ServerSettings(port=0)) as address:
        yield address


def test_thinking_has_its_budget_and_its_place(thinker: str) -> None:
    ask = {"messages": HI, "max_tokens": 24, "ignore_eos": True, "chat_template_kwargs": {"opened": True}}
    more = {**ask, "thinking_token_budget": 6, "seed": 1}
    made = httpx.post(f"{thinker}/v1/chat/completions", json=more, timeout=60).json()
    message, details = made["choices"][0]["message"], made["usage"]["completion_tokens_details"]
    assert message["reasoning_content"] and 0 < details["reasoning_tokens"] < 16
    chunks = stream(thinker, "/v1/chat/completions", **more)
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == message["reasoning_content"]
    assert said(chunks) == message["content"]
    plain = said(stream(thinker, "/v1/chat/completions", **more, reasoning_format="none"))
    assert plain.startswith("<think>\n" + message["reasoning_content"]) and "</think>" in plain
    hidden = httpx.post(
        f"{thinker}/v1/chat/completions", json={**more, "include_reasoning": False}, timeout=60
    ).json()
    assert "reasoning_content" not in hidden["choices"][0]["message"]


def test_a_response_tells_of_thinking(thinker: str) -> None:
    ask = {"input": "hi", "max_output_tokens": 12, "ignore_eos": True, "seed": 1}
    made = httpx.post(f"{thinker}/v1/responses", json={**ask, "reasoning": {"effort": "none"}}, timeout=60)
    assert made.json()["usage"]["output_tokens_details"]["reasoning_tokens"] == 0
    refused = httpx.post(f"{thinker}/v1/responses", json={**ask, "reasoning": {"effort": "low"}}, timeout=60)
    assert refused.status_code == 400 and "effort" in refused.text


def test_thinking_and_calls_as_items_of_a_response() -> None:
    output, told = ResponseOutput(), []
    for event in (
        Reasoning("hm"), Reasoning("."), Content("So"), CallBegin(0, "c1", "f"), CallArguments(0, "{}"),
        CallEnd(0), Content("done"),
    ):  # fmt: skip
        told += output.add(event)
    told += output.close()
    assert [item["type"] for item in output.items] == ["reasoning", "message", "function_call", "message"]
    assert [data["sequence_number"] for _, data in told] == list(range(len(told)))
    assert {item["status"] for item in output.items} == {"completed"}
    begun = [data for kind, data in told if kind == "response.content_part.added"]
    assert [data["part"]["text"] for data in begun] == ["", "", ""]
    ended = [data for kind, data in told if kind == "response.output_item.done"]
    assert [data["item"] for data in ended] == output.items


@pytest.mark.parametrize(
    ("where", "content", "reasoning"),
    [
        ("auto", "ab", "hm."),
        ("none", "<think>\nhm.\n</think>\n\nab", ""),
        ("deepseek-legacy", "<think>\nhm.\n</think>\n\nab", "hm."),
    ],
)
def test_thinking_is_put_where_it_is_wanted(where: Any, content: str, reasoning: str) -> None:
    given = [Reasoning("hm"), Reasoning("."), Content("a"), Content("b")]
    placed = Placed(where, True)
    events = [e for one in given for e in placed.events([one])]
    assert "".join(e.text for e in events if isinstance(e, Content)) == content
    assert "".join(e.text for e in events if isinstance(e, Reasoning)) == reasoning
    assert placed.whole("ab", "hm.") == (content, reasoning)
    assert not any(isinstance(e, Reasoning) for e in Placed(where, False).events(given))


@pytest.mark.parametrize("taken", [0, 2, 9])
def test_later_chunks_go_straight_to_the_connection_as_long_as_it_takes_them(taken: int) -> None:
    """The first goes through the middleware, which counts it; `taken` more are written at once, and what the
    connection does not take goes the long way, in order.
    """
    bits = [b"%d" % n for n in range(6)]
    came, straight, closed = list[bytes](), list[bytes](), list[bool]()

    async def made() -> AsyncIterator[bytes]:
        for bit in bits:
            yield bit

    async def send(message: Message) -> None:
        if body := message.get("body"):
            came.append(body)

    async def receive() -> Message:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def close() -> None:
        closed.append(True)

    class Direct:
        at = 0.0

        def __call__(self, data: bytes) -> bool:
            if len(straight) == taken:
                return False
            straight.append(data)
            came.append(data)
            return True

    scope = {"type": "http", "path": "/v1/completions", "extensions": {PIECE: Direct()}}
    asyncio.run(Stream(made(), close)(scope, receive, send))
    assert came == bits and straight == bits[1 : 1 + taken] and closed


@pytest.mark.model
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_stream_is_framed_as_its_version_of_http_wants(
    server: str, version: str, monkeypatch: pytest.MonkeyPatch, in_turns: None
) -> None:
    pieces, write = list[bytes](), ResponseWriter.__call__

    def counted(self: ResponseWriter, data: bytes) -> bool:
        pieces.append(data)
        return write(self, data)

    monkeypatch.setattr(ResponseWriter, "__call__", counted)
    body = json.dumps({"prompt": "One two", "stream": True, "max_tokens": 12, "ignore_eos": True}).encode()
    at = urlsplit(server)
    with socket.create_connection((at.hostname, at.port), timeout=SECONDS) as talk:
        asked = f"POST /v1/completions HTTP/{version}\r\nhost: {at.netloc}\r\ncontent-type: application/json"
        talk.sendall(f"{asked}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        came = b"".join(iter(lambda: talk.recv(1 << 16), b""))
    head, _, rest = came.partition(b"\r\n\r\n")
    assert (b"transfer-encoding: chunked" in head.lower()) == (version == "1.1") == bool(pieces)
    text = b""
    while version == "1.1" and rest:
        size, _, rest = rest.partition(b"\r\n")
        text, rest = text + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    events = (text or rest).decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    said = [json.loads(e.removeprefix("data: ")) for e in events[:-2]]
    assert said[-1]["choices"][0]["finish_reason"] == "length" and len(said) > 3
