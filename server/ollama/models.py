"""/api/tags, /api/ps, /api/show and /api/version: all models, loaded models, and details of one."""

from __future__ import annotations

import time
from functools import partial
from importlib.metadata import version

from fastapi import APIRouter, Request
from pydantic import Field

from satchel.runtime.api.defaults import PREFIX, request_defaults
from satchel.runtime.api.options import Options
from satchel.server.bodies import BodyRoute
from satchel.server.fields import Body
from satchel.server.flavour import JsonObject
from satchel.server.models import READY, ServedModel, pool_tokens
from satchel.server.ollama.details import FileDetails, listed, metadata, shown
from satchel.server.ollama.shapes import FAR, stamp
from satchel.server.problem import Problem
from satchel.server.roles import USER, needs
from satchel.server.route import in_pool, models_of, unknown_fields

router = APIRouter(route_class=BodyRoute)
TOLD = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n")


class ShowBody(Body):
    """The body of /api/show."""

    model: str = Field(default="", max_length=1000)
    # The older name of `model`.
    name: str = Field(default="", max_length=1000)
    verbose: bool = False


@router.get("/api/version")
@needs(USER)
async def tell_version() -> JsonObject:
    return {"version": version("satchel")}


@router.get("/api/tags")
@needs(USER)
async def tags(request: Request) -> JsonObject:
    entries = list(models_of(request).entries.values())
    return {"models": await in_pool(request, "file", lambda: [_listed(e, listed(e.path)) for e in entries])}


@router.get("/api/ps")
@needs(USER)
async def running(request: Request) -> JsonObject:
    entries = [e for e in models_of(request).entries.values() if e.state == READY]
    return {"models": await in_pool(request, "file", lambda: [_running(e, listed(e.path)) for e in entries])}


@router.post("/api/show")
@needs(USER)
async def show(request: Request, body: ShowBody) -> JsonObject:
    warnings = unknown_fields(request, body)
    name = body.model or body.name
    if not name:
        raise Problem("invalid", "model is missing: name one", "model")
    entry = models_of(request).entry(name)
    file = await in_pool(request, "file", partial(shown, entry.path))
    info = await in_pool(request, "file", partial(metadata, entry.path, whole=body.verbose))
    return {
        "modelfile": f"FROM {tagged(entry.name)}\n",
        "parameters": _parameters(file, entry.options),
        "template": file.details.template,
        "license": file.details.licence,
        "details": file.as_json(),
        "model_info": {**info, "general.parameter_count": file.details.parameters},
        "capabilities": list(file.details.capabilities),
        "modified_at": stamp(entry.created),
        **({"warnings": warnings} if warnings else {}),
    }


def tagged(name: str) -> str:
    """The name with a tag, as Ollama lists it: ":latest" where it has none."""
    return name if ":" in name else f"{name}:latest"


def _head(entry: ServedModel, file: FileDetails) -> JsonObject:
    name = tagged(entry.name)
    head = {"name": name, "model": name, "size": file.details.size, "digest": file.digest}
    return {**head, "details": file.as_json()}


def _listed(entry: ServedModel, file: FileDetails) -> JsonObject:
    return {**_head(entry, file), "modified_at": stamp(entry.created)}


def _running(entry: ServedModel, file: FileDetails) -> JsonObject:
    left = FAR if entry.expires is None else entry.expires
    running = {**_head(entry, file), "expires_at": stamp(time.time() + left), "size_vram": 0}
    if entry.model is None:
        return running
    model = entry.model.model
    return {**running, "context_length": model.context, **pool_tokens(model, model.stats())}


def _parameters(file: FileDetails, options: Options) -> str:
    """The sampling options of requests that set none, as lines of a Modelfile."""
    of_file = {PREFIX + key: value for key, value in file.details.sampling.items()}
    found = request_defaults(of_file, options.defaults, "")[0].sampling
    return "\n".join(f"{name:<30} {getattr(found, name)}" for name in TOLD)
