"""/v1/models: the list of models that a client reads first."""

from __future__ import annotations

from satchel.cli.conformance.expect import expect, fits, parsed, same
from satchel.cli.conformance.target import ConformanceTarget, raised, said

MODEL = {"id": str, "object": "model", "created": int, "owned_by": str}


def listed(target: ConformanceTarget) -> None:
    """GET /v1/models lists the models with id, object, created and owned_by."""
    body = target.get("/v1/models")
    fits(body, {"object": "list", "data": [MODEL]})
    expect(target.model in [m["id"] for m in body["data"]], f"{target.model!r} is not in the list")


def one(target: ConformanceTarget) -> None:
    """GET /v1/models/ID describes one model."""
    fits(target.get(f"/v1/models/{target.model}"), MODEL | {"id": target.model})


def unknown(target: ConformanceTarget) -> None:
    """GET /v1/models/ID of a model that is not there is 404 with the code model_not_found."""
    found = target.http.get("/v1/models/no-such-model")
    expect(found.status_code == 404, f"expected HTTP 404, got {said(found)}")
    fits(parsed(found.text, "the error"), {"error": {"message": str, "code": "model_not_found"}})


def client(target: ConformanceTarget) -> None:
    """openai: models.list() and models.retrieve() work, and an unknown model raises NotFoundError."""
    names = [m.id for m in target.openai.models.list()]
    expect(target.model in names, f"{target.model!r} is not among {names}")
    same("models.retrieve().id", target.openai.models.retrieve(target.model).id, target.model)
    absent = target.official("openai").NotFoundError
    error = raised(absent, lambda: target.openai.models.retrieve("no-such-model"), "models.retrieve()")
    same("the error's code", error.code, "model_not_found")
