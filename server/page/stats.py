"""GET /dashboard/stats: each model's state and its counters over all loads, and whether the caller may load
models. The dashboard and the page's models poll it each second, so it sends quantiles, not whole histograms.
"""

from __future__ import annotations

import time

from fastapi import APIRouter, Request

from satchel.runtime.engine.stats import Distribution, EngineStats
from satchel.server.flavour import JsonObject
from satchel.server.models import ServedModel
from satchel.server.problem import without_paths
from satchel.server.roles import USER, needs
from satchel.server.route import caller_of, models_of

router = APIRouter(include_in_schema=False)
TOTALS = ("prompt_tokens", "cached_tokens", "generated_tokens", "steps", "preemptions", "worker_restarts")
NOW = ("running", "waiting", "kv_blocks", "kv_free", "kv_kept")
TIMES = ("time_to_first_token_seconds", "inter_token_seconds", "queue_seconds")


@router.get("/dashboard/stats")
@needs(USER)
async def stats(request: Request) -> JsonObject:
    entries = models_of(request).entries.values()
    models = [await _model(entry) for entry in entries]
    return {"time": time.time(), "admin": caller_of(request).admin, "models": models}


async def _model(entry: ServedModel) -> JsonObject:
    state: JsonObject = {
        "name": entry.name,
        "state": entry.state,
        "percent": 100 * entry.done // entry.total if entry.total else 0,
        "users": entry.users,
        "size": entry.size,
        "error": without_paths(entry.error),
    }
    if entry.model is not None:
        state["n_ctx"] = entry.model.model.context
    found = await entry.counters()
    return {**state, "stats": _engine(found)} if found else state


def _engine(found: EngineStats) -> JsonObject:
    counts = {name: getattr(found, name) for name in (*NOW, *TOTALS)}
    times = {name.removesuffix("_seconds"): _times(found.histograms[name]) for name in TIMES}
    return {**counts, "requests": dict(found.requests), "seconds": times}


def _times(found: Distribution) -> JsonObject:
    """Mean and quantiles in seconds. A quantile above all bounds is null, because JSON has no infinity."""
    quantiles = {f"p{q}": found.quantile(q / 100) for q in (50, 99)}
    known = {name: None if value == float("inf") else value for name, value in quantiles.items()}
    return {"count": found.count, "mean": found.mean, **known}
