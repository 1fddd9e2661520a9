"""The OpenAPI document is what the server does: requests made of it, right and wrong, never make it fail; and
a client that hangs up leaves nothing behind (H18).
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tiny_file import write_model
from waiting import ready, until

schemathesis = pytest.importorskip("schemathesis")
pytest.importorskip("fastapi")

from satchel.cli.server.settings import ServerSettings  # noqa: E402
from satchel.runtime.options import Options  # noqa: E402

EXAMPLES = 15  # for each route, in CI
USUAL = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
# They change the server.
LEFT_OUT = (
    "/config/reload",
    "/models/unload",
    "/api/delete",
    "/api/pull",
    "/api/copy",
)  # they change the server


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, serving_of: Any) -> Iterator[str]:
    """A server of a tiny model with a short context: every answer is short."""
    path: Path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_model(path, qwen3__context_length=96)
    with serving_of([path], Options(slots=4), ServerSettings(port=0)) as address:
        ready(address)
        yield address


def test_no_request_of_the_schema_makes_it_fail(tiny: str) -> None:
    schema, tried = schemathesis.openapi.from_url(f"{tiny}/openapi.json"), 0
    for operation in schema.get_all_operations():
        found = operation.ok()
        if found.path not in LEFT_OUT:
            tried += 1
            given(found.as_strategy())(USUAL(lambda case: one_request(case)))()
    assert tried > 25


def one_request(case: Any) -> None:
    answer = case.call(timeout=60)
    assert answer.status_code < 500 or answer.status_code == 503, (case.as_curl_command(), answer.text)


@pytest.mark.model
def test_h18_clients_that_hang_up_leave_nothing_behind(server: str) -> None:
    parts = urlsplit(server)
    body = b'{"messages": [{"role": "user", "content": "%s"}], "stream": true, "max_tokens": 500}'
    for i in range(60):
        text = b"word " * (400 if i % 3 else 3)  # within the prompt, or within the answer
        data = body % text
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with socket.create_connection((parts.hostname, parts.port)) as wire:
            wire.sendall(head + b"Content-Length: %d\r\n\r\n" % len(data) + data)
            if i % 2:
                wire.settimeout(20)
                wire.recv(10)

    def value(name: str) -> float:
        lines = httpx.get(f"{server}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))

    until(lambda: value("satchel_running") == value("satchel_waiting") == 0, "every request is let go")
    assert value("satchel_kv_free") + value("satchel_kv_kept") == value("satchel_kv_blocks")
