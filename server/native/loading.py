"""Loading and unloading models as llama-server's router does it; aliases; reload of the configuration."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import Field

from satchel.server.bodies import BodyRoute
from satchel.server.fields import Body
from satchel.server.flavour import JsonObject
from satchel.server.problem import Problem
from satchel.server.roles import ADMIN, needs
from satchel.server.route import models_of, reload_of

router = APIRouter(route_class=BodyRoute)


class LoadBody(Body):
    model: str = Field(min_length=1, max_length=1000)


@router.post("/models/load")
@needs(ADMIN)
async def load(request: Request, body: LoadBody) -> JsonObject:
    async with models_of(request).use(body.model):
        return {"success": True}


@router.post("/models/unload")
@needs(ADMIN)
async def unload(request: Request, body: LoadBody) -> JsonObject:
    entry = models_of(request).entry(body.model)
    if entry.users:
        line = f"{entry.name}: {entry.users} requests use it: try again when they have ended"
        raise Problem("conflict", line, "model", "model_in_use")
    await entry.unload()
    return {"success": True}


@router.get("/aliases")
@needs(ADMIN)
async def aliases(request: Request) -> JsonObject:
    """Each alias with the request counts and error rates of its versions."""
    return {"aliases": [alias.as_json() for alias in models_of(request).aliases.values()]}


@router.post("/config/reload")
@needs(ADMIN)
async def reload(request: Request) -> JsonObject:
    """Reloads the configuration file, as SIGHUP does."""
    return {"changed": await reload_of(request)()}
