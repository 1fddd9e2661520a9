"""A server on loopback that speaks Hugging Face's API and that of Ollama's registry, and can misbehave."""

from __future__ import annotations

import hashlib
import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import SECONDS, happened, until

import satchel.store.download
from satchel.store.remote import Pace

# Small ranges, so that a file of some kilobytes needs many; short pauses between retries.
QUICK = Pace(workers=3, piece=1 << 12, block=1 << 10, least=1 << 10, patience=60.0, pause=0.01, tries=3)
LOCK = threading.Lock()
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL, LICENCE = "application/vnd.ollama.image.model", "application/vnd.ollama.image.license"


@dataclass
class Served:
    """A file of the server, and how the server misbehaves when it sends it."""

    data: bytes = b""
    etag: str | None = None  # None: the digest in quotes, "": no ETag
    ranges: bool = True  # the server answers range requests with 206
    length: int | None = None  # a false Content-Length
    cut: int | None = None  # each response ends after so many bytes
    step: int = 1 << 16  # bytes of a write
    free: int | None = None  # bytes sent in all responses together before the rest waits for `go`
    go: threading.Event = field(default_factory=threading.Event)
    redirect: str = ""  # every request is redirected there
    said: str = "bytes {first}-{last}/{size}"  # Content-Range
    status: int = 0  # the status of every response; 0: the right one
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        return f'"{sha(self.data)}"' if self.etag is None else self.etag


@dataclass
class Hub:
    """A running server."""

    url: str
    files: dict[str, Served] = field(default_factory=dict)  # by path
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)  # (path, headers) of each request
    queries: list[str] = field(default_factory=list)  # what followed `?` in each request
    posted: list[Any] = field(default_factory=list)  # the bodies of requests that had one
    before: Callable[[str], None] = lambda path: None
    open: set[Any] = field(default_factory=set)  # connections that were accepted and are not finished

    def finish_all(self) -> None:
        """Waits until every request sent before is handled. Clients that were killed leave requests behind,
        which the server counts only when it reads them.
        """
        host, _, port = self.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as last:  # accepted after all earlier connections
            last.sendall(b"GET /nothing HTTP/1.0\r\n\r\n")
            while last.recv(1 << 16):
                pass
        until(lambda: not self.open, "the server has finished all connections")

    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]

    def put_json(self, path: str, value: Any) -> None:
        self.files[path] = Served(json.dumps(value).encode(), ranges=False)

    def put_repo(self, repo: str, files: dict[str, bytes], licence: str = "mit", **changes: Any) -> None:
        """Adds a repository of the hub; its files are large ones with digests."""
        self.put_json(f"/api/models/{repo}", repository(files, licence) | changes)
        for path, data in files.items():
            self.files[f"/{repo}/resolve/{COMMIT}/{path}"] = Served(data)

    def put_ollama(self, name: str, tag: str, data: bytes, licence: str = "") -> None:
        """Adds a model of Ollama's registry."""
        layers = [(MODEL, data), *([(LICENCE, licence.encode())] if licence else [])]
        self.put_json(f"/v2/{name}/manifests/{tag}", {"schemaVersion": 2, "layers": [*map(layer, layers)]})
        for _, content in layers:
            self.files[f"/v2/{name}/blobs/sha256:{sha(content)}"] = Served(content)


def repository(files: dict[str, bytes], licence: str = "mit") -> dict[str, Any]:
    large = [
        {"rfilename": path, "size": len(data), "lfs": {"sha256": sha(data), "size": len(data)}}
        for path, data in files.items()
    ]
    other = {"rfilename": "README.md", "size": 3}
    return {"sha": COMMIT, "siblings": [other, *large], "cardData": {"license": licence}}


def layer(content: tuple[str, bytes]) -> dict[str, Any]:
    kind, data = content
    return {"mediaType": kind, "digest": f"sha256:{sha(data)}", "size": len(data)}


def rushing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates the clock of downloads: 100 seconds pass between two looks, so every transfer is too slow."""
    seconds = itertools.count(step=100)
    monkeypatch.setattr(satchel.store.download, "time", SimpleNamespace(monotonic=lambda: next(seconds)))


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Runs the server on a free port while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            """Nothing is printed."""

        def do_POST(self) -> None:
            hub.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.do_GET()

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            hub.queries.append(query)
            hub.asked.append((path, {k.lower(): v for k, v in self.headers.items()}))
            hub.before(path)
            try:
                answer(self, hub.files.get(path, Served(status=404)))
            except (ConnectionError, TimeoutError):
                self.close_connection = True

    class Server(ThreadingHTTPServer):
        def process_request(self, request: Any, client_address: Any) -> None:
            hub.open.add(request)
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            super().shutdown_request(request)
            hub.open.discard(request)

        def handle_error(self, *args: object) -> None:
            """Ignores clients that disconnect."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(SECONDS)


@contextmanager
def registries(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The server as the hub and the registry of this process, whose store is below the folder."""
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "SATCHEL_OFFLINE", "HF_HUB_CACHE", "SATCHEL_FOLDERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SATCHEL_TRUSTED_HOSTS", raising=False)
    with hub_server() as running:
        for name in ("HF_ENDPOINT", "SATCHEL_OLLAMA_REGISTRY"):
            monkeypatch.setenv(name, running.url)
        for name in ("SATCHEL_MODELS", "HF_HOME", "OLLAMA_MODELS", "HOME"):
            monkeypatch.setenv(name, str(folder / name.lower()))
        yield running


def answer(handler: BaseHTTPRequestHandler, served: Served) -> None:
    if served.redirect or served.status:
        handler.send_response(served.status or 302)
        if served.redirect:
            handler.send_header("Location", served.redirect)
        for name, value in served.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    wanted, size = handler.headers.get("Range", ""), len(served.data)
    body = served.data
    if wanted and served.ranges:
        first, last = wanted.removeprefix("bytes=").split("-")
        begin, end = int(first), min(int(last) + 1, size)
        if begin >= size:
            handler.send_response(416)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        body = served.data[begin:end]
        handler.send_response(206)
        handler.send_header("Content-Range", served.said.format(first=begin, last=end - 1, size=size))
    else:
        handler.send_response(200)
    if served.tag:
        handler.send_header("ETag", served.tag)
    for name, value in served.headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body) if served.length is None else served.length))
    if served.length is not None:
        handler.close_connection = True  # the client learns that the response is over
    handler.end_headers()
    send(handler, served, body)


def send(handler: BaseHTTPRequestHandler, served: Served, body: bytes) -> None:
    for at in range(0, len(body), served.step):
        piece = body[at : at + served.step]
        if served.free is not None:
            with LOCK:
                served.free -= len(piece)
            if served.free < 0:
                happened(served.go, "the rest of a file is let go")
        if served.cut is not None and at + len(piece) > served.cut:
            handler.wfile.write(piece[: max(0, served.cut - at)])
            handler.close_connection = True
            return
        handler.wfile.write(piece)
