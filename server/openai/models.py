"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from math import prod

from fastapi import APIRouter, Request

from satchel.runtime.api.model import Model
from satchel.server.anthropic import models as anthropic
from satchel.server.flavour import JsonObject
from satchel.server.models import ServedModel
from satchel.server.roles import USER, needs
from satchel.server.route import models_of

router = APIRouter()


@router.get("/v1/models")
@router.get("/models")
@needs(USER)
async def list_models(request: Request) -> JsonObject:
    if anthropic.asked(request):
        return anthropic.page(request)
    return {"object": "list", "data": [_model(e) for e in models_of(request).entries.values()]}


@router.get("/v1/models/{name:path}")
@needs(USER)
async def one_model(request: Request, name: str) -> JsonObject:
    entry = models_of(request).entry(name)
    return anthropic.one(entry) if anthropic.asked(request) else _model(entry)


def _model(entry: ServedModel) -> JsonObject:
    found: JsonObject = {"id": entry.name, "object": "model", "created": entry.created, "owned_by": "satchel"}
    found["status"] = {"value": entry.state}
    if entry.model is not None:
        found["meta"] = meta(entry.model.model)
    return found


def meta(model: Model) -> JsonObject:
    """llama-server's `meta` object. ftype: the file's general.file_type."""
    metadata = model.gguf.metadata
    arch = metadata.get_str("general.architecture")
    return {
        "architecture": arch,
        "vocab_type": model.tokenizer.kind,
        "n_vocab": model.arch.vocab,
        "n_ctx": model.context,
        "n_ctx_train": metadata.get_uint(f"{arch}.context_length", 0),
        "n_embd": metadata.get_uint(f"{arch}.embedding_length", 0),
        "n_params": sum(prod(t.shape) for t in model.gguf.tensors.values()),
        "size": model.path.stat().st_size,
        "ftype": metadata.get_uint("general.file_type", 0),
    }
