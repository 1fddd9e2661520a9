"""The fuzz target `requests`: any bytes as the body of a request to any API flavour, through the whole
application over a tiny random model. No response may be a server error, and each must match its content type.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import tempfile
import threading
from collections.abc import Callable, MutableMapping
from functools import cache
from pathlib import Path
from typing import Any

from tiny_file import write_model

CONTEXT = 96  # tokens: keeps every answer short
SECONDS = 60.0  # seconds for one response
# Routes that read other files or the network, or change the loaded models, are left out.
ROUTES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/chat/completions/input_tokens",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/api/chat",
    "/api/generate",
    "/api/embed",
    "/api/show",
    "/completion",
    "/infill",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/embedding",
    "/lora-adapters",
)
Send = Callable[[MutableMapping[str, Any]], Any]


class Server:
    """The application with its event loop in a thread of its own."""

    def __init__(self) -> None:
        from satchel.runtime.api.options import Options
        from satchel.server.app import create_app
        from satchel.server.catalog import catalog_of
        from satchel.server.models import Models
        from satchel.server.settings import ServerSettings

        self.folder = tempfile.TemporaryDirectory(prefix="satchel-fuzz-")
        path = write_model(Path(self.folder.name) / "tiny.gguf", qwen3__context_length=CONTEXT)
        catalog = catalog_of({"tiny": path}, {}, Options(slots=2), 0, None)
        self.models = Models(catalog, 0)
        self.app = create_app(self.models, ServerSettings())
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.wait(self.models.preload())

    def wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(SECONDS)

    def close(self) -> None:
        for entry in self.models.entries.values():
            if entry.model is not None:
                # The loop's threads have ended by then, so it can't close the model.
                entry.model.model.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.folder.cleanup()

    async def answer(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        """(status, content type, body) of one request."""
        told, parts, over = [0, ""], [], asyncio.Event()
        sent = False
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
        }
        scope |= {"headers": headers, "http_version": "1.1", "scheme": "http", "root_path": "", "state": {}}
        scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "asgi": {"version": "3.0"}}

        async def receive() -> MutableMapping[str, Any]:
            nonlocal sent
            if sent:
                await over.wait()
                return {"type": "http.disconnect"}
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                kinds = [v for k, v in message["headers"] if k.lower() == b"content-type"]
                told[:] = [message["status"], (kinds or [b""])[0].decode("latin-1")]
            else:
                parts.append(message.get("body", b""))

        try:
            await self.app(scope, receive, send)
        finally:
            over.set()
        return int(told[0]), str(told[1]), b"".join(parts)


@cache
def server() -> Server:
    made = Server()
    atexit.register(made.close)
    return made


def requests(data: bytes) -> None:
    """One byte, the number of a route (letters from `a` in the corpus), then the body."""
    if not data:
        return
    path = ROUTES[(data[0] - ord("a")) % len(ROUTES)]
    status, kind, body = server().wait(server().answer(path, data[1:]))
    if not 200 <= status < 500 and status != 503:
        raise AssertionError(f"{path}: {status} {body[:500]!r}")
    if kind.startswith("application/json"):
        json.loads(body)
    elif kind.startswith("text/event-stream"):
        check_events(body)


def check_events(body: bytes) -> None:
    """Every event of a stream is complete, and none reports a server error."""
    if not body.endswith(b"\n\n"):
        raise AssertionError(f"a stream ends in the middle of an event: {body[-200:]!r}")
    for line in body.decode().split("\n"):
        if line.startswith("data: ") and line != "data: [DONE]":
            event = json.loads(line[6:])
            error = event.get("error") if isinstance(event, dict) else None
            if isinstance(error, dict) and error.get("type") in ("server_error", "api_error", "internal"):
                raise AssertionError(f"a stream ended with {line[:300]}")
