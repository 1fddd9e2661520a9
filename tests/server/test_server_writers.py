"""Writer processes: streams that they write are those that the server writes, and come back whole wherever
the server must go on.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tiny_file import write_model
from waiting import SECONDS, until, until_async

from satchel.errors import DeviceError
from satchel.runtime.api.answer_text import AnswerTextSettings
from satchel.runtime.api.model import Model
from satchel.runtime.api.options import Options
from satchel.server.settings import ServerSettings
from satchel.server.text_frame import TextFrame
from satchel.server.writers import StreamLease, StreamWriters, WriterProcess

pytestmark = pytest.mark.skipif(not hasattr(socket, "send_fds"), reason="this system passes no descriptors")
NO_MODEL: Any = None
FRAMES = {"content": TextFrame("<", ">")}
SAME = {"seed": 3, "max_tokens": 40, "ignore_eos": True, "stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [write_model(tmp_path_factory.mktemp("writers") / "tiny.gguf")]


@pytest.fixture(scope="module")
def both(models: list[Path], serving_of: Any) -> Iterator[tuple[str, str]]:
    """The addresses of a server that writes itself, and of one whose process writes."""
    options = Options(slots=4, context=256)
    with (
        serving_of(models, options, ServerSettings(port=0, http_processes=0)) as alone,
        serving_of(models, options, ServerSettings(port=0, http_processes=1)) as leasing,
    ):
        yield alone, leasing


@pytest.fixture
def leased(monkeypatch: pytest.MonkeyPatch) -> list[StreamLease]:
    """The streams that are leased during the test."""
    found, lease = list[StreamLease](), WriterProcess.lease

    def noted(self: WriterProcess, *args: Any) -> Any:
        made = lease(self, *args)
        found.append(made)
        return made

    monkeypatch.setattr(WriterProcess, "lease", noted)
    return found


def events(server: str, path: str, body: dict[str, Any]) -> list[Any]:
    """A stream's chunks, without what is another's in each answer; its texts joined."""
    raw = httpx.post(f"{server}{path}", json={**body, "stream": True}, timeout=SECONDS).text
    assert raw.endswith("data: [DONE]\n\n")
    chunks = [json.loads(line[6:]) for line in raw.split("\n") if line.startswith("data: {")]
    text, ends = "", list[Any]()
    for chunk in chunks:
        for choice in chunk["choices"]:
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            ends.append(choice["finish_reason"])
        if "usage" in chunk:
            ends.append(chunk["usage"])
    return [text, *(end for end in ends if end)]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "ab", **SAME}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], **SAME}),
        ("/v1/completions", {"prompt": "ab", **SAME, "ignore_eos": False, "max_tokens": 200}),
        ("/v1/completions", {"prompt": "ab", **SAME, "logit_bias": {"5": 1.0}}),
        ("/v1/completions", {"prompt": "ab", **SAME, "min_tokens": 9}),
    ],
)
def test_a_stream_is_the_same_whoever_writes_it(
    both: tuple[str, str], leased: list[StreamLease], path: str, body: dict[str, Any]
) -> None:
    alone, leasing = both
    wanted = events(alone, path, body)
    assert not leased

    def as_leased() -> bool:
        assert events(leasing, path, body) == wanted
        return bool(leased) or "min_tokens" in body  # its tokens wait for the host one by one

    until(as_leased, "no stream was leased")


def test_a_stop_text_ends_a_lent_stream_where_it_ends_another(
    both: tuple[str, str], leased: list[StreamLease]
) -> None:
    alone, leasing = both
    body = {"prompt": "ab", **SAME, "max_tokens": 60}
    text = str(events(alone, "/v1/completions", body)[0])
    stop = text[len(text) // 2 :][:3]
    cut = {**body, "stop": [stop]}
    assert events(leasing, "/v1/completions", cut)[:2] == [text.partition(stop)[0], "stop"]


def test_the_next_request_goes_over_the_connection_of_a_lent_stream(
    both: tuple[str, str], leased: list[StreamLease]
) -> None:
    _, leasing = both
    body = {"prompt": "ab", **SAME, "stream": True}
    with httpx.Client(base_url=leasing, timeout=SECONDS) as client:
        first, second = (client.post("/v1/completions", json=body) for _ in range(2))
        assert first.text.endswith("data: [DONE]\n\n") and second.status_code == 200
        assert client.get("/healthz").status_code == 200


def test_a_client_that_leaves_a_lent_stream_ends_its_request(
    both: tuple[str, str], leased: list[StreamLease]
) -> None:
    _, leasing = both
    body = json.dumps({"prompt": "ab", "stream": True, "max_tokens": 200, "ignore_eos": True}).encode()
    place = urlsplit(leasing)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {place.netloc}\r\ncontent-type: application/json\r\n"
    with socket.create_connection((place.hostname, place.port), timeout=SECONDS) as wire:
        wire.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        assert wire.recv(100)

    def idle() -> bool:
        return not any(slot["is_processing"] for slot in httpx.get(f"{leasing}/slots").json())

    until(idle, "the request goes on")


# One process, without a server


class Connection:
    """A process with one stream leased to it. client: the other end of its connection."""

    def __init__(self, model: Model) -> None:
        self.writers, self.model = StreamWriters(1), model
        self.client, self.server = socket.socketpair()
        self.server.setblocking(False)

    async def __aenter__(self) -> Connection:
        self.writers.begin()
        self.process = await until_async(self.writers.choose, "the process is not ready")
        settings = AnswerTextSettings()
        self.stream = self.process.lease(self.server.fileno(), self.model.tokenizer, settings, FRAMES, [5])
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.writers.close()
        self.client.close()
        self.server.close()

    def give(self, *tokens: int) -> None:
        self.stream.give(tokens)

    async def came(self, wanted: bytes) -> bytes:
        got = bytearray()
        self.client.setblocking(False)

        def there() -> bool:
            try:
                got.extend(self.client.recv(1 << 20))
            except BlockingIOError:
                return False
            return len(got) >= len(wanted)

        await until_async(there, "the bytes do not come")
        return bytes(got)


@pytest.fixture(scope="module")
def model(models: list[Path]) -> Iterator[Model]:
    with Model.load(models[0], context=64) as loaded:
        yield loaded


def plain_tokens(model: Model, count: int) -> list[int]:
    texts = ((i, model.tokenizer.stream().piece(i)) for i in range(model.tokenizer.vocab_size))
    return [i for i, piece in texts if piece.isascii() and piece.isalpha()][:count]


def chunk(model: Model, tokens: list[int]) -> bytes:
    data = FRAMES["content"].of(b"".join(map(model.tokenizer.token_bytes, tokens)).decode())
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_tokens_that_come_together_leave_as_one_chunk_and_are_counted(model: Model) -> None:
    tokens = plain_tokens(model, 6)

    async def run() -> None:
        async with Connection(model) as one:
            one.give(*tokens[:2])
            one.give(tokens[2])
            wanted = chunk(model, tokens[:2]) + chunk(model, tokens[2:3])
            assert await one.came(wanted) == wanted
            one.give(*tokens[3:])
            one.stream.recall()
            assert await one.stream.back == (6, b"") and one.stream.given == tokens
            assert await one.came(chunk(model, tokens[3:])) == chunk(model, tokens[3:])

    asyncio.run(run())


def test_a_stream_whose_client_does_not_read_comes_back_with_what_is_unsent(model: Model) -> None:
    tokens = plain_tokens(model, 1) * 4000

    async def run() -> None:
        async with Connection(model) as one:
            while not one.stream.back.done():
                one.give(*tokens)
                await asyncio.sleep(0)
            written, unsent = await one.stream.back
            assert unsent and written % len(tokens) == 0 and written <= len(one.stream.given)
            whole = chunk(model, tokens) * (written // len(tokens))
            assert await one.came(whole[: len(whole) - len(unsent)]) + unsent == whole

    asyncio.run(run())


def test_a_tokenizer_goes_with_its_model_and_the_process_forgets_it(models: list[Path]) -> None:
    async def run() -> None:
        loaded = Model.load(models[0], context=64)
        gone = weakref.ref(loaded.tokenizer)
        async with Connection(loaded) as one:
            process, one.model = one.process, NO_MODEL
            one.stream.drop()
            del one.stream
            loaded.close()
            del loaded
            await until_async(lambda: gc.collect() < 0 or gone() is None, "the tokenizer is still there")
            assert list(process._gone)

    asyncio.run(run())


def test_a_process_that_is_lost_says_so_of_its_streams_and_others_are_not_lent(model: Model) -> None:
    async def run() -> None:
        async with Connection(model) as one:
            os.kill(one.process.pid, signal.SIGKILL)
            with pytest.raises(DeviceError, match="was lost"):
                await one.stream.back
            assert one.writers.choose() is None

    asyncio.run(run())
