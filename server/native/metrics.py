"""GET /metrics in Prometheus's text format."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from satchel.server.metrics import Counts, rendered
from satchel.server.roles import ADMIN, needs
from satchel.server.route import connections_of, models_of, traffic_of

router = APIRouter()


@router.get("/metrics")
@needs(ADMIN)
async def metrics(request: Request) -> Response:
    models = models_of(request)
    entries = list(models.entries.values())
    found = await asyncio.gather(*(e.counters() for e in entries))
    engines = {e.name: stats for e, stats in zip(entries, found, strict=True) if stats}
    loaded = {e.name: e.model is not None for e in entries}
    replicas = {e.name: e.model.model.fleet for e in entries if e.model is not None}
    fleets = {name: fleet for name, fleet in replicas.items() if fleet is not None}
    traffic, connections = traffic_of(request), connections_of(request)
    counts = Counts(engines, loaded, traffic, models.aliases.values(), connections, fleets)
    text = await asyncio.to_thread(rendered, counts)  # takes 10 ms per model
    return Response(text, media_type=CONTENT_TYPE_LATEST)
