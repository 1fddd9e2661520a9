"""GET and POST /lora-adapters: the loaded adapters, and their default scales for requests that name none."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field, RootModel

from satchel.server.asked import named_adapters
from satchel.server.bodies import BodyRoute
from satchel.server.flavour import JsonObject
from satchel.server.openai.fields import AdapterScale
from satchel.server.roles import ADMIN, USER, needs
from satchel.server.route import caller_of, models_of

router = APIRouter(route_class=BodyRoute)
ModelName = Annotated[str, Query(max_length=1000)]


class Scales(RootModel[Annotated[list[AdapterScale], Field(max_length=64)]]):
    pass


@router.get("/lora-adapters")
@needs(USER)
async def adapters(request: Request, model: ModelName = "") -> list[JsonObject]:
    async with models_of(request).look(model) as lease:
        adapters, changed = lease.model.model.adapters, lease.entry.adapters
        loaded = adapters.lora if adapters else {}
        return [
            {"id": i, "path": name, "scale": scale if changed is None else changed.get(i, 0.0)}
            for i, (name, scale) in enumerate(loaded.items())
        ]


@router.post("/lora-adapters")
@needs(ADMIN)
async def change(request: Request, scales: Scales, model: ModelName = "") -> JsonObject:
    async with models_of(request).use(model, caller_of(request).user) as lease:
        chosen = {one.id: one.scale for one in scales.root}
        named_adapters(lease.model.model, chosen)
        lease.entry.adapters = chosen
    return {"success": True}
