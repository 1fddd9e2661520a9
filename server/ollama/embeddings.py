"""POST /api/embed, and the older /api/embeddings."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BeforeValidator, Field

from satchel.formats.tokenizer import at_most
from satchel.runtime.api.model import Model
from satchel.server.bodies import BodyRoute
from satchel.server.fields import Body
from satchel.server.flavour import JsonObject
from satchel.server.ollama.options import OllamaOptions, keep, keep_seconds
from satchel.server.ollama.shapes import NS
from satchel.server.reading import most_tokens, written
from satchel.server.roles import USER, needs
from satchel.server.route import caller_of, in_pool, models_of, scope_of, unknown_fields
from satchel.server.stream import unless_gone

router = APIRouter(route_class=BodyRoute)
MOST = 4096  # texts per request


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class EmbedFields(Body):
    model: str = Field(min_length=1, max_length=1000)
    options: OllamaOptions = OllamaOptions()
    keep_alive: int | float | str | None = None


class EmbedBody(EmbedFields):
    """The body of /api/embed."""

    input: Annotated[list[str], BeforeValidator(_listed), Field(max_length=MOST)]
    # A text longer than the context is cut with a warning; False: it is an error.
    truncate: bool = True
    dimensions: int | None = Field(default=None, ge=1, le=1 << 20)


class OldBody(EmbedFields):
    prompt: str = ""


@router.post("/api/embed")
@needs(USER)
async def embed(request: Request, body: EmbedBody) -> JSONResponse:
    warnings = [*unknown_fields(request, body), *body.options.warnings()]
    result = await unless_gone(request, _embed(request, body, warnings))
    return await written(request, lambda: result)


@router.post("/api/embeddings")
@needs(USER)
async def embeddings(request: Request, body: OldBody) -> JsonObject:
    warnings = [*unknown_fields(request, body), *body.options.warnings()]
    if not body.prompt:
        return {"embedding": [], **({"warnings": warnings} if warnings else {})}
    asked = EmbedBody(
        model=body.model,
        input=[body.prompt],
        options=body.options,
        keep_alive=body.keep_alive,
        truncate=False,
    )
    found = await unless_gone(request, _embed(request, asked, warnings))
    return {"embedding": found["embeddings"][0], **({"warnings": warnings} if warnings else {})}


async def _embed(request: Request, body: EmbedBody, warnings: list[str]) -> JsonObject:
    arrived, seconds = time.perf_counter(), keep_seconds(body.keep_alive)
    async with models_of(request).use(body.model, caller_of(request).user) as lease:
        loaded, model = time.perf_counter(), lease.model
        warnings += body.options.check_context(model.model.context)
        warnings += keep(lease.entry, seconds, caller_of(request))
        ids = await in_pool(request, "embed", partial(_tokenized, model.model, body.input))
        if body.truncate:
            ids = [_cut(one, model.model.context, i, warnings) for i, one in enumerate(ids)]
        salt = caller_of(request).salt
        with scope_of(caller_of(request)).entered():
            found = await model.embed(ids, dimensions=body.dimensions, salt=salt) if ids else None
    result = {
        "model": body.model,
        "embeddings": [] if found is None else await in_pool(request, "response", found.tolist),
        "total_duration": int((time.perf_counter() - arrived) * NS),
        "load_duration": int((loaded - arrived) * NS),
        "prompt_eval_count": sum(map(len, ids)),
    }
    return {**result, "warnings": warnings} if warnings else result


def _tokenized(model: Model, texts: list[str]) -> list[list[int]]:
    with at_most(most_tokens(model.context)):
        return [model.tokenize(text) for text in texts]


def _cut(ids: list[int], context: int, number: int, warnings: list[str]) -> list[int]:
    """The first `context` ids; adds a warning where some are cut off."""
    if len(ids) > context:
        warnings.append(f"input {number} has {len(ids)} tokens: the first {context} were read")
    return ids[:context]
