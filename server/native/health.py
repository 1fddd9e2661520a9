"""Liveness (/healthz) and readiness (/health, /readyz) probes. They do not use the engine."""

from __future__ import annotations

from fastapi import APIRouter, Request

from satchel.server.flavour import JsonObject
from satchel.server.models import FAILED, LOADING
from satchel.server.problem import Problem, without_paths
from satchel.server.roles import PUBLIC, needs
from satchel.server.route import models_of

router = APIRouter()


@router.get("/healthz")
@needs(PUBLIC)
async def alive() -> JsonObject:
    return {"status": "ok"}


@router.get("/health")
@router.get("/v1/health")
@router.get("/readyz")
@needs(PUBLIC)
async def ready(request: Request) -> JsonObject:
    models = models_of(request)
    if models.draining:
        raise Problem("busy", "the server is stopping: no new request is taken", code="draining")
    if not models.ready:
        coming = [e for e in models.entries.values() if e.state == LOADING]
        done, total = sum(e.done for e in coming), sum(e.total for e in coming)
        percent = 100 * done // total if total else 0
        raise Problem("loading", f"Loading model: {percent} %", retry_after=1, numbers={"percent": percent})
    broken = [e for e in models.entries.values() if e.state == FAILED]
    if broken and len(broken) == len(models.entries):
        raise Problem("engine", without_paths(broken[0].error), code="model_error")
    for entry in models.entries.values():
        if entry.model is not None and (trouble := entry.model.trouble):
            line = without_paths(f"{entry.name}: {trouble}")
            raise Problem("busy", line, code="engine_not_ready", retry_after=1)
    return {"status": "ok"}
