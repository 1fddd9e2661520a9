"""A server of three API flavours over canned_model, right in all that `satchel doctor api` looks at; `spoil`
makes it wrong in one thing. Bodies are the golden shapes: what the official clients were seen to accept.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY, MODEL, CONTEXT = "secret", "m", 512
MOST_BODY = 1 << 20


@dataclass
class Reply:
    """A response: an object, server-sent events, or lines of NDJSON."""

    body: Any = None
    status: int = 200
    events: list[tuple[str, Any]] | None = None  # (name, data) of each
    lines: list[Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def packed(self) -> tuple[str, bytes]:
        if self.events is not None:
            return "text/event-stream", "".join(_event(n, d) for n, d in self.events).encode()
        if self.lines is not None:
            return "application/x-ndjson", "".join(json.dumps(x) + "\n" for x in self.lines).encode()
        if isinstance(self.body, str):
            return "text/plain", self.body.encode()
        return "application/json", json.dumps(self.body).encode()


def _event(name: str, data: Any) -> str:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return (f"event: {name}\n" if name else "") + f"data: {text}\n\n"


class Refused(Exception):
    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


Route = Callable[[dict[str, Any]], Reply]
Spoil = Callable[[str, dict[str, Any], Reply], None]
ROUTES: dict[tuple[str, str], Route] = {}
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
}


def route(method: str, *paths: str) -> Callable[[Route], Route]:
    def note(function: Route) -> Route:
        ROUTES.update({(method, path): function for path in paths})
        return function

    return note


def error(path: str, problem: Refused) -> Reply:
    """The error in the shape of the path's API flavour."""
    kind = KINDS.get(problem.status, "invalid_request_error")
    if path.startswith("/v1/messages"):
        inner = {"type": kind, "message": str(problem)}
        return Reply({"type": "error", "error": inner, "request_id": "req_1"}, problem.status)
    if path.startswith("/api/"):
        return Reply({"error": str(problem)}, problem.status)
    inner = {"message": str(problem), "type": kind, "param": problem.param, "code": problem.code}
    return Reply({"error": inner}, problem.status)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    spoil: Spoil | None = None

    def log_message(self, *args: object) -> None:
        """Silences the access log."""

    def do_GET(self) -> None:
        self.answer("GET")

    def do_POST(self) -> None:
        self.answer("POST")

    def answer(self, method: str) -> None:
        asked: dict[str, Any] = {}
        try:
            self.check_key()
            asked = self.read() if method == "POST" else {}
            reply = self.find(method)(asked)
        except Refused as problem:
            reply = error(self.path, problem)
        reply = copy.deepcopy(reply)  # `spoil` must not change the routes' own objects
        if self.spoil:
            type(self).spoil(self.path, asked, reply)  # type: ignore[misc]
        self.send(reply)

    def check_key(self) -> None:
        given = self.headers.get("x-api-key") or self.headers.get("Authorization", "").removeprefix("Bearer ")
        if given != KEY:
            self.close_connection = True
            raise Refused(401, "no valid key", code="invalid_api_key")

    def read(self) -> dict[str, Any]:
        size = int(self.headers.get("Content-Length", 0))
        if size > MOST_BODY:
            self.close_connection = True
            raise Refused(413, "too large")
        data = self.rfile.read(size)
        if self.headers.get("Content-Type") != "application/json":
            raise Refused(415, "no JSON")
        try:
            found = json.loads(data)
        except ValueError as wrong:
            raise Refused(400, str(wrong)) from None
        if found.get("model", MODEL) != MODEL:
            raise Refused(404, "no such model", "model", "model_not_found")
        return {k: v for k, v in found.items() if v is not None}

    def find(self, method: str) -> Route:
        if (method, self.path) in ROUTES:
            return ROUTES[method, self.path]
        if any(path == self.path for _, path in ROUTES):
            raise Refused(405, "another method")
        if self.path.startswith("/v1/models/"):
            raise Refused(404, "no such model", "model", "model_not_found")
        raise Refused(404, "no such route")

    def send(self, reply: Reply) -> None:
        kind, data = reply.packed()
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.headers.get("Content-Type", kind))
        streams = bool(reply.events)
        self.send_header(
            *(("Transfer-Encoding", "chunked") if streams else ("Content-Length", str(len(data))))
        )
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        # A line of a stream is a chunk, which clients receive on its own however fast it is sent.
        for part in (*data.splitlines(keepends=True), b"") if streams else (data,):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if streams else part)


class Server(ThreadingHTTPServer):
    # Connections that wait for accept; the crowd check opens more than the default of 5.
    request_queue_size = 128
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores clients that disconnect."""


@contextmanager
def canned(spoil: Spoil | None = None) -> Iterator[str]:
    """Runs the server on a free port; yields its address."""
    import canned_routes  # noqa: F401  # fills ROUTES

    kind = type("Spoilt", (Handler,), {"spoil": staticmethod(spoil) if spoil else None})
    server = Server(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)
