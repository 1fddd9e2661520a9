"""The list of models in Anthropic's shape. The routes are in openai/models.py."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.requests import Request

from satchel.server.anthropic import HEADER
from satchel.server.flavour import JsonObject
from satchel.server.models import ServedModel
from satchel.server.problem import Problem
from satchel.server.route import models_of

MOST, USUAL = 1000, 20


def asked(request: Request) -> bool:
    """Whether the request comes from an Anthropic client."""
    return HEADER in request.headers


def page(request: Request) -> JsonObject:
    """One page of the list: `limit` models after `after_id`, or before `before_id`."""
    entries = list(models_of(request).entries.values())
    names = [e.name for e in entries]
    limit = _limit(request.query_params.get("limit", str(USUAL)))
    start, stop = 0, len(names)
    if (after := request.query_params.get("after_id")) is not None:
        start = _place(names, after, "after_id") + 1
    if (before := request.query_params.get("before_id")) is not None:
        stop = _place(names, before, "before_id")
        start = max(start, stop - limit)
    found = entries[start : min(stop, start + limit)]
    more = start > 0 if before is not None else start + len(found) < stop
    ends = (found[0].name, found[-1].name) if found else (None, None)
    return {"data": [one(e) for e in found], "has_more": more, "first_id": ends[0], "last_id": ends[1]}


def one(entry: ServedModel) -> JsonObject:
    found: JsonObject = {
        "type": "model",
        "id": entry.name,
        "display_name": entry.name,
        "created_at": datetime.fromtimestamp(entry.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
    }
    if entry.model is not None:
        found["max_input_tokens"] = found["max_tokens"] = entry.model.model.context
    return found


def _limit(text: str) -> int:
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= MOST:
        raise Problem("invalid", f"limit is {text!r:.20}: it must lie between 1 and {MOST}", "limit")
    return int(text)


def _place(names: list[str], name: str, param: str) -> int:
    if name not in names:
        raise Problem("invalid", f"{param}: there is no model {name!r:.100}", param)
    return names.index(name)
