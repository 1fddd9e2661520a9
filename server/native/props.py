"""GET /props: the properties of a loaded model: context, slots, chat template, default sampling."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Query, Request

from satchel.runtime.api.generate_options import GenerateOptions
from satchel.runtime.api.model import Model
from satchel.server.bodies import BodyRoute
from satchel.server.flavour import JsonObject
from satchel.server.native.settings import generation_settings
from satchel.server.problem import Problem
from satchel.server.roles import ADMIN, USER, needs
from satchel.server.route import models_of

router = APIRouter(route_class=BodyRoute)
Name = Annotated[str, Query(max_length=1000)]


@router.get("/props")
@needs(USER)
async def props(request: Request, model: Name = "") -> JsonObject:
    async with models_of(request).look(model) as lease:
        return properties(lease.model.model, lease.name)


def properties(model: Model, name: str) -> JsonObject:
    tokenizer = model.tokenizer
    bos, eos = (tokenizer.text(t) if t is not None else "" for t in (tokenizer.bos, tokenizer.eos))
    style, defaults = model.style, model.request_defaults
    return {
        "default_generation_settings": {
            "n_ctx": model.context,
            "params": generation_settings(GenerateOptions.of(**defaults.kwargs), defaults.sampling),
        },
        "total_slots": model.slots,
        "model_alias": name,
        "model_path": model.path.name,
        "modalities": {"vision": False, "audio": False},
        "chat_template": model.template.source,
        "chat_template_caps": {
            "supports_tools": model.template.supports_tools,
            "tool_calls": style.family,
            "thinks": style.thinks,
            "reasoning_efforts": style.efforts,
        },
        "bos_token": bos,
        "eos_token": eos,
        "build_info": f"satchel {version('satchel')}",
        "is_sleeping": False,
    }


@router.post("/props")
@needs(ADMIN)
async def change(request: Request) -> JsonObject:
    line = "properties are chosen when the server starts: change its configuration file and reload it"
    raise Problem("unsupported", line)
