"""Runs the application under uvicorn until it is told to stop: by SIGINT or SIGTERM it drains, by a second
one it cuts; by SIGHUP it reads its configuration again.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

import uvicorn
from fastapi import FastAPI

from satchel.cli.sandboxing import note_of
from satchel.cli.server.app import create_app
from satchel.cli.server.catalog import Catalog
from satchel.cli.server.log import LOG
from satchel.cli.server.models import Models
from satchel.cli.server.settings import OWN, ServerSettings
from satchel.cli.server.telemetry import from_environment
from satchel.formats.gguf import open_gguf
from satchel.quant import RequestError, SatchelError

BACKLOG = 2048


def listen(host: str, port: int, settings: ServerSettings) -> socket.socket:
    """A socket that is bound. RequestError where the address is taken, or open to others without a key."""
    if host not in OWN and not settings.api_keys:
        raise RequestError(f"--host {host} is open to others: give a key with --api-key, or take 127.0.0.1")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named so, asyncio turns Nagle's algorithm off, which would hold back small answers for 40 ms.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(BACKLOG)  # now: who comes before all is ready waits
    except OSError as error:
        made.close()
        raise RequestError(f"{host}:{port}: {error.strerror}: take another --port") from None
    return made


def check_files(catalog: Catalog) -> None:
    """The error of a file that is none, before anything listens."""
    for served in catalog.models.values():
        if not served.stored:  # those were checked when they were pulled
            open_gguf(served.path).close()


def run_server(read: Callable[[], Catalog], budget: int, settings: ServerSettings) -> None:
    """Serves until it is told to stop. read: the catalog as it stands now; asked again for a reload."""
    catalog = read()
    check_files(catalog)
    ports = [settings.port, *([] if settings.ollama_port is None else [settings.ollama_port])]
    bound = [listen(settings.host, port, settings) for port in ports]
    asyncio.run(_serve(read, Models(catalog, budget, from_environment()), bound, settings))


def config_of(app: FastAPI, settings: ServerSettings) -> uvicorn.Config:
    """As uvicorn has it. h11 reads HTTP whatever else is installed: it holds to the limit of a header."""
    return uvicorn.Config(
        app,
        http="h11",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=max(1, round(settings.drain)),
        limit_concurrency=settings.most_connections,
        timeout_keep_alive=settings.keep_alive,
        h11_max_incomplete_event_size=settings.most_header,
        ssl_certfile=settings.certificate and settings.certificate[0],
        ssl_keyfile=settings.certificate and settings.certificate[1],
    )


async def _serve(
    read: Callable[[], Catalog], models: Models, bound: list[socket.socket], settings: ServerSettings
) -> None:
    def reload() -> list[str]:
        catalog = read()
        check_files(catalog)
        told = models.change(catalog)
        LOG.info("the configuration was read again: %s", "; ".join(told) or "nothing changed")
        return told

    config = config_of(create_app(models, settings, reload), settings)
    with suppress(AttributeError, NotImplementedError):  # Windows has none
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reloaded, reload)
    for one in bound:
        told = f"Satchel listens on {_address(one, settings)} (Ctrl-C stops it)"
        print(told, file=sys.stderr, flush=True)
    if line := note_of(entry.options for entry in models.entries.values()):
        LOG.warning("%s", line)
    with suppress(KeyboardInterrupt):
        await uvicorn.Server(config).serve(bound)


def _address(bound: socket.socket, settings: ServerSettings) -> str:
    host, port = bound.getsockname()[:2]
    scheme = "https" if settings.certificate else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _reloaded(reload: Callable[[], list[str]]) -> None:
    """By a signal nobody hears an error: it goes to the log, and all stays as it was."""
    try:
        reload()
    except SatchelError as error:
        LOG.error("the configuration was not read again: %s", error)
