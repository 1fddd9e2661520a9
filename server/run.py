"""Runs the application under uvicorn. SIGINT or SIGTERM drains the server, a second one ends it at once;
SIGHUP reloads the configuration.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import math
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from satchel.errors import RequestError
from satchel.formats.gguf import open_gguf
from satchel.server.accept import AcceptingServer, stop_listening
from satchel.server.addresses import Proxies
from satchel.server.app import create_app
from satchel.server.catalog import Catalog
from satchel.server.connections import SPARE
from satchel.server.descriptors import connections_below, raised_limit
from satchel.server.log import LOG
from satchel.server.models import Models, ShowLoad
from satchel.server.protocol import Deadlines
from satchel.server.reload import Reload
from satchel.server.sandbox_note import sandbox_note
from satchel.server.settings import ServerSettings, is_own, is_unix
from satchel.server.telemetry import from_environment

BACKLOG = 2048


def listen(host: str, port: int, settings: ServerSettings) -> socket.socket:
    """A listening socket. RequestError where the address is in use, or reachable from outside
    without a key.
    """
    if is_unix(host):
        return listen_unix(Path(host))
    if not is_own(host) and not settings.needs_key:
        raise RequestError(f"--host {host} is open to others: give a key with --api-key, or take 127.0.0.1")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only for IPPROTO_TCP; it would delay small responses by 40 ms.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(BACKLOG)  # clients that connect before the server is ready wait
    except OSError as error:
        made.close()
        raise RequestError(f"{host}:{port}: {error.strerror}: take another --port") from None
    return made


def listen_unix(path: Path) -> socket.socket:
    """A listening Unix socket for its owner and group. RequestError where another server listens on it."""
    if not hasattr(socket, "AF_UNIX"):
        raise RequestError(f"--host {path}: this system has no Unix sockets: take 127.0.0.1")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
                    raise OSError(errno.EADDRINUSE, "Address already in use")
            path.unlink()  # left behind by a server that was killed
        before = os.umask(0o117)
        try:
            made.bind(str(path))
        finally:
            os.umask(before)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise RequestError(f"--host {path}: {error.strerror or error}: take another path") from None
    return made


def check_files(catalog: Catalog) -> None:
    """Opens every model file once, so that an invalid one is an error before the server listens."""
    for served in catalog.models.values():
        if not served.stored:  # the store checked its files when it pulled them
            open_gguf(served.path).close()


def run_server(
    read: Callable[[], Catalog], budget: int, settings: ServerSettings, show_load: ShowLoad
) -> None:
    """Serves until a signal stops it. read: returns the current catalog; called again for a reload.
    show_load: shows the progress of the loads at the start.
    """
    catalog = read()
    check_files(catalog)
    Proxies(settings.trusted_proxies)  # an invalid one is an error before the server listens
    if is_unix(settings.host) and settings.ollama_port is not None:
        raise RequestError("--ollama-port: a Unix socket has no port: give --host an address")
    ports = [settings.port, *([] if settings.ollama_port is None else [settings.ollama_port])]
    limit = raised_limit()
    most = connections_below(limit, settings.most_connections, SPARE + len(ports), len(catalog.models))
    settings = replace(settings, most_connections=most)
    bound = [listen(settings.host, port, settings) for port in ports]
    try:
        models = Models(catalog, budget, from_environment(), show_load)
        asyncio.run(_serve(read, models, bound, settings))
    finally:
        for one in bound:  # the server did not start
            stop_listening(one)


def config_of(app: FastAPI, settings: ServerSettings) -> uvicorn.Config:
    """uvicorn's configuration. The protocol is based on h11 even where httptools is installed, because h11
    enforces the limit of a header. `Deadlines` limits connections and handles proxy headers itself.
    """
    make = partial(
        Deadlines,
        settings=settings,
        connections=app.state.connections,
        proxies=Proxies(settings.trusted_proxies),
    )
    return uvicorn.Config(
        app,
        http=cast(Any, make),
        ws="none",
        proxy_headers=False,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=max(1, round(settings.drain)),
        timeout_keep_alive=math.ceil(settings.keep_alive) + 1,  # the protocol's own deadline comes first
        h11_max_incomplete_event_size=settings.most_header,
        ssl_certfile=settings.certificate and settings.certificate[0],
        ssl_keyfile=settings.certificate and settings.certificate[1],
    )


def server_of(app: FastAPI, settings: ServerSettings) -> AcceptingServer:
    """The server of an application; `serve(bound)` runs it."""
    proxies = Proxies(settings.trusted_proxies)
    config, models = config_of(app, settings), cast(Models, app.state.models)
    return AcceptingServer(config, app.state.connections, proxies, settings.header_seconds, models.drain)


async def _serve(
    read: Callable[[], Catalog], models: Models, bound: list[socket.socket], settings: ServerSettings
) -> None:
    def checked() -> Catalog:
        catalog = read()
        check_files(catalog)
        return catalog

    reload = Reload(checked, models)
    server = server_of(create_app(models, settings, reload), settings)
    with suppress(AttributeError, NotImplementedError):  # Windows has none
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.by_signal)
    for one in bound:
        line = f"Satchel listens on {_address(one, settings)} (Ctrl-C stops it)"
        print(line, file=sys.stderr, flush=True)
    if line := sandbox_note(entry.options for entry in models.entries.values()):
        LOG.warning("%s", line)
    # What is loaded now stays: a full collection of garbage, which stops the loop, need not look at it.
    gc.collect()
    gc.freeze()
    with suppress(KeyboardInterrupt):
        await server.serve(bound)


def _address(bound: socket.socket, settings: ServerSettings) -> str:
    if is_unix(settings.host):
        return f"unix:{settings.host}"
    host, port = bound.getsockname()[:2]
    scheme = "https" if settings.certificate else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
