"""The ASGI application: includes every router, writes errors in the shape of their API flavour, and closes
the models at shutdown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from satchel.errors import SatchelError
from satchel.server.connections import TICK, ConnectionLimits, Connections
from satchel.server.flavour import flavour_of, routed
from satchel.server.guard import RequestGuard
from satchel.server.log import LOG
from satchel.server.models import Models
from satchel.server.problem import Problem, problem_of
from satchel.server.protocol import Refusals
from satchel.server.pulls import Pulls
from satchel.server.roles import ADMIN, RoleTable, check_role
from satchel.server.route import caller_of
from satchel.server.settings import ServerSettings
from satchel.server.watch import HttpTraffic, Watch
from satchel.server.writers import StreamWriters

NOWHERE = object()
PAGE = "satchel.server.page."
STATUS_KINDS = {404: "missing", 405: "method", 413: "large", 415: "media"}


async def _nothing_changed() -> list[str]:
    return []


def create_app(
    models: Models, settings: ServerSettings, reload: Callable[[], Awaitable[list[str]]] = _nothing_changed
) -> FastAPI:
    """The application over these models. reload: reads the configuration again and returns what changed."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        app.state.writers.begin()
        tending = [asyncio.create_task(models.preload()), asyncio.create_task(models.tend())]
        yield
        for task in tending:
            task.cancel()
        await app.state.writers.close()
        await models.close()

    # native/document.py serves the OpenAPI document.
    app = FastAPI(
        title="Satchel",
        version=version("satchel"),
        lifespan=life,
        openapi_url=None,
        dependencies=[Depends(_allowed)],
    )
    app.state.models, app.state.settings, app.state.reload = models, settings, reload
    app.state.traffic, app.state.pulls = HttpTraffic(), Pulls(settings)
    app.state.connections, app.state.writers = _connections(settings), StreamWriters(settings.http_processes)
    modules = [m for m in routed() if settings.page or not m.__name__.startswith(PAGE)]
    for module in modules:
        app.include_router(module.router)
    roles = RoleTable(route for module in modules for route in module.router.routes)
    app.add_middleware(RequestGuard, settings=settings, roles=roles)
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type", "x-api-key", "anthropic-version"],
        )
    app.add_middleware(Refusals)
    app.add_middleware(Watch, traffic=app.state.traffic, spans=models.spans)
    app.add_exception_handler(Problem, _answer)
    app.add_exception_handler(SatchelError, _answer)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unforeseen)
    return app


def _connections(settings: ServerSettings) -> Connections:
    shortest = min(settings.header_seconds, settings.write_seconds, settings.keep_alive)
    limits = ConnectionLimits(
        settings.most_connections, min(settings.most_per_client, settings.most_connections)
    )
    return Connections(limits, min(TICK, max(0.01, shortest / 4)))


async def _allowed(request: Request) -> None:
    """Checks the caller's role again with the route that was matched, in case the guard matched another."""
    check_role(getattr(request.scope["endpoint"], "role", ADMIN), caller_of(request).role)


def _say(request: Request, problem: Problem) -> JSONResponse:
    flavour = flavour_of(request.url.path, request.headers)
    status, body = flavour.error(problem, request.scope["state"].get("request_id", ""))
    return JSONResponse(body, status, headers=problem.headers)


async def _answer(request: Request, error: Exception) -> JSONResponse:
    return _say(request, problem_of(error))


async def _unforeseen(request: Request, error: Exception) -> JSONResponse:
    LOG.error("%.20s %.200s failed", request.method, request.url.path, exc_info=error)
    return _say(request, problem_of(error))


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """The first validation error of pydantic, with the path of its field."""
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    where, *loc = first["loc"] or ("body",)
    # For "query" and "path", loc holds the parameter's name only.
    param = _path(_within(error.body, loc, first["type"] == "missing") if where == "body" else loc)
    message = str(first["msg"]).removeprefix("Value error, ")
    text = f"{param}: {message}" if param else message
    return _say(request, Problem("invalid", text, param or None))


async def _http(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    kind = STATUS_KINDS.get(error.status_code, "invalid" if error.status_code < 500 else "internal")
    return _say(request, Problem(kind, f"{request.method:.20} {request.url.path:.200}: {error.detail}"))


def _within(body: object, loc: Sequence[int | str], missing: bool) -> list[int | str]:
    """The parts of pydantic's loc that are keys of the body: loc also holds the names of union members."""
    found: list[int | str] = []
    for at, part in enumerate(loc):
        if isinstance(part, int):
            inner = body[part] if isinstance(body, list) and part < len(body) else NOWHERE
        else:
            inner = body.get(part, NOWHERE) if isinstance(body, dict) else NOWHERE
        if inner is not NOWHERE:
            body = inner
        elif not (missing and at == len(loc) - 1):
            continue
        found.append(part)
    return found


def _path(parts: list[int | str]) -> str:
    """A loc as a path such as messages[0].role."""
    text = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in parts)
    return text.removeprefix(".")
