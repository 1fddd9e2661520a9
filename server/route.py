"""Accessors that routes use on a request: the models, the settings, the caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar, cast

from starlette.requests import Request

from satchel.runtime.engine.cancel_scope import CancelScope
from satchel.server.connections import Connections
from satchel.server.fields import Body
from satchel.server.generation import Caller
from satchel.server.models import Models
from satchel.server.problem import Problem
from satchel.server.pulls import Pulls
from satchel.server.settings import ServerSettings
from satchel.server.watch import HttpTraffic

T = TypeVar("T")


def models_of(request: Request) -> Models:
    return cast(Models, request.app.state.models)


async def in_pool(request: Request, kind: str, work: Callable[[], T]) -> T:
    """Runs the work in the thread pool of this kind for this caller (pools.py), whose share of the engine it
    uses.
    """
    scope = scope_of(caller_of(request))
    return await models_of(request).pools.run(kind, partial(scope.run, work), caller_of(request).user)


def scope_of(caller: Caller) -> CancelScope:
    """The scope of a call for this caller."""
    return CancelScope(client=caller.client, weight=caller.share)


def settings_of(request: Request) -> ServerSettings:
    return cast(ServerSettings, request.app.state.settings)


def caller_of(request: Request) -> Caller:
    return cast(Caller, request.scope["state"]["caller"])


def reload_of(request: Request) -> Callable[[], Awaitable[list[str]]]:
    """The function that reloads the configuration and returns what changed."""
    return cast("Callable[[], Awaitable[list[str]]]", request.app.state.reload)


def pulls_of(request: Request) -> Pulls:
    return cast(Pulls, request.app.state.pulls)


def traffic_of(request: Request) -> HttpTraffic:
    return cast(HttpTraffic, request.app.state.traffic)


def connections_of(request: Request) -> Connections:
    return cast(Connections, request.app.state.connections)


def unknown_fields(request: Request, body: Body) -> list[str]:
    """A warning for each unknown field of the body; a Problem instead with --strict-fields."""
    if body.unknown and settings_of(request).strict_fields:
        raise Problem(
            "invalid", f"unknown field: {', '.join(body.unknown):.200}", body.unknown[0], "unknown_field"
        )
    return [f"the field {name!r:.80} is not known: it had no effect" for name in body.unknown]
