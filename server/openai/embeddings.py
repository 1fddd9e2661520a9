"""POST /v1/embeddings, and llama-server's /embedding in its own shape."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import AliasChoices, Field

from satchel.runtime.api.model import Model
from satchel.runtime.api.readings import token_lists
from satchel.runtime.graph import Array
from satchel.server.bodies import BodyRoute
from satchel.server.fields import Body
from satchel.server.flavour import JsonObject
from satchel.server.openai.prompts import Inputs, several
from satchel.server.openai.refused import check_refused
from satchel.server.problem import Problem
from satchel.server.reading import with_model, written
from satchel.server.roles import USER, needs
from satchel.server.route import unknown_fields

router = APIRouter(route_class=BodyRoute)
UNSCALED, EUCLIDEAN = -1, 2  # of embd_normalize


class EmbeddingBody(Body):
    """The body of /v1/embeddings and /embedding."""

    model: str = Field(default="", max_length=1000)
    # OpenAI's `input`, llama-server's `content`.
    input: Inputs = Field(validation_alias=AliasChoices("input", "content"))
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1, le=1 << 20)
    # 2: vectors of length 1 (L2 norm); -1: as the model computes them.
    embd_normalize: int = EUCLIDEAN
    pooling: Literal["mean", "cls", "last"] | None = None
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1, le=1 << 31)
    user: str | None = None

    @property
    def unknown(self) -> list[str]:
        return check_refused(self.model_extra or {})

    def check(self) -> None:
        if self.embd_normalize not in (UNSCALED, EUCLIDEAN):
            name = "embd_normalize"
            raise Problem("unsupported", f"{name}: 2 (to length 1) and -1 (as it is) are supported", name)

    def tokens(self, model: Model) -> list[list[int]]:
        """The token ids of each text, truncated as requested."""
        found = [model.tokenize(t) if isinstance(t, str) else list(t) for t in several(self.input)]
        last = self.truncate_prompt_tokens or 0
        most = model.context if last == -1 else last
        return token_lists(model, [ids[:most] if most else ids for ids in found])

    def vectors(self, model: Model, ids: Sequence[Sequence[int]], salt: str) -> Array:
        normalize = self.embd_normalize == EUCLIDEAN
        return model.embed(
            ids, pooling=self.pooling, normalize=normalize, dimensions=self.dimensions, salt=salt
        )


@router.post("/v1/embeddings")
@needs(USER)
async def embeddings(request: Request, body: EmbeddingBody) -> JSONResponse:
    name, (vectors, count, notes) = await _embedded(request, body)

    def made() -> JsonObject:
        data = [
            {"object": "embedding", "index": i, "embedding": encoded(v, body.encoding_format)}
            for i, v in enumerate(vectors)
        ]
        usage = {"prompt_tokens": count, "total_tokens": count}
        found: JsonObject = {"object": "list", "model": name, "data": data, "usage": usage}
        return {**found, "warnings": notes} if notes else found

    return await written(request, made)


@router.post("/embedding")
@router.post("/embeddings")
@needs(USER)
async def native(request: Request, body: EmbeddingBody) -> JSONResponse:
    """llama-server's shape: a list of objects, each with its vector inside a list."""
    _, (vectors, _, _) = await _embedded(request, body)

    def made() -> list[JsonObject]:
        return [{"index": i, "embedding": [encoded(v, body.encoding_format)]} for i, v in enumerate(vectors)]

    return await written(request, made)


async def _embedded(request: Request, body: EmbeddingBody) -> tuple[str, tuple[Array, int, list[str]]]:
    notes = unknown_fields(request, body)
    body.check()

    def work(model: Model, salt: str) -> tuple[Array, int, list[str]]:
        ids = body.tokens(model)
        return body.vectors(model, ids, salt), sum(map(len, ids)), notes

    return await with_model(request, body.model, work, "embed")


def encoded(vector: Array, form: str) -> Any:
    """A vector as a list of numbers, or as little-endian float32 in base64."""
    if form == "base64":
        return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode()
    return vector.astype(np.float64).tolist()
