"""The OpenAPI document is right: valid and invalid requests generated from it never make the server fail, and
a disconnected client leaves nothing behind (H18).
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from loop_budget import Prober
from tiny_file import write_model

pytest.importorskip("schemathesis")
pytest.importorskip("fastapi")


from waiting import SECONDS, ready, until

from satchel.runtime.api.options import Options
from satchel.server.app import create_app
from satchel.server.catalog import catalog_of
from satchel.server.models import Models
from satchel.server.settings import ServerSettings

REQUESTS = Path(__file__).parents[1] / "support" / "schema_requests.py"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, serving_of: Any) -> Iterator[str]:
    """A server of a tiny model with a short context, so that every answer is short."""
    path: Path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_model(path, qwen3__context_length=96)
    with serving_of([path], Options(slots=4), ServerSettings(port=0)) as address:
        ready(address)
        yield address


def asked(address: str, *options: str, seconds: float) -> dict[str, Any]:
    """Runs schema_requests.py; returns its counts. Its failures fail this test."""
    command = [sys.executable, str(REQUESTS), address, *options]
    with (
        httpx.Client(base_url=address, timeout=60) as client,
        Prober(lambda: client.get("/health").status_code) as prober,
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    print(f"slowest of {len(prober.answers)} answers of /health: {prober.worst * 1e3:.0f} ms")
    assert set(prober.answers) == {200}
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-20_000:]}{done.stderr[-5_000:]}"
    counts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return counts


def test_no_request_of_the_schema_makes_it_fail(tiny: str) -> None:
    counts = asked(tiny, "--examples=4", "--share=97", seconds=280)
    assert counts["routes"] > 25
    assert counts["answers"]["200"] > 15 and counts["answers"]["400"] > 100


@pytest.mark.nightly
def test_no_request_drawn_anew_makes_it_fail(tiny: str) -> None:
    """Every extreme of every field, and many new random requests each night."""
    asked(
        tiny, "--examples=400", "--share=1", f"--seed={random.SystemRandom().getrandbits(31)}", seconds=7000
    )


def test_others_are_answered_while_the_document_is_made() -> None:
    app = create_app(Models(catalog_of({}, {}, Options(), 0, None), 0), ServerSettings(port=0))
    begun, told = threading.Event(), threading.Event()

    def openapi() -> dict[str, Any]:
        begun.set()
        assert told.wait(60), "nobody was answered meanwhile"
        return {"openapi": "3.1.0"}

    app.openapi = openapi  # type: ignore[method-assign]

    async def both() -> tuple[httpx.Response, httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            document = asyncio.create_task(client.get("/openapi.json"))
            assert await asyncio.to_thread(begun.wait, SECONDS)
            health = await client.get("/healthz")
            told.set()
            return health, await document

    health, document = asyncio.run(both())
    assert health.status_code == 200 and document.json() == {"openapi": "3.1.0"}


@pytest.mark.model
def test_h18_clients_that_hang_up_leave_nothing_behind(server: str) -> None:
    parts = urlsplit(server)
    body = b'{"messages": [{"role": "user", "content": "%s"}], "stream": true, "max_tokens": 500}'
    for i in range(60):
        text = b"word " * (400 if i % 3 else 3)  # disconnects during the prompt, or during the answer
        data = body % text
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with socket.create_connection((parts.hostname, parts.port)) as wire:
            wire.sendall(head + b"Content-Length: %d\r\n\r\n" % len(data) + data)
            if i % 2:
                wire.settimeout(SECONDS)
                wire.recv(10)

    def let_go() -> bool:
        """In one look: a request that was cut may still be on its way to the engine."""
        lines = httpx.get(f"{server}/metrics").text.splitlines()

        def value(name: str) -> float:
            return sum(float(line.split()[-1]) for line in lines if line.startswith(f"satchel_{name}{{"))

        free = value("kv_free") + value("kv_kept") == value("kv_blocks")
        return free and value("running") == value("waiting") == 0

    until(let_go, "every request is let go, and every block")
