"""OpenAI's API with the extensions of llama-server and vLLM."""

from __future__ import annotations

from satchel.server.flavour import ApiFlavour, JsonObject
from satchel.server.problem import Problem
from satchel.server.stream import event

TYPES = {
    "key": "authentication_error",
    "forbidden": "permission_error",
    "missing": "not_found_error",
    "busy": "unavailable_error",
    "loading": "unavailable_error",
    "internal": "server_error",
    "engine": "server_error",
}


def _body(problem: Problem) -> JsonObject:
    said = {
        "message": problem.message,
        "type": TYPES.get(problem.kind, "invalid_request_error"),
        "param": problem.param,
        "code": problem.code or problem.kind,
    }
    return {"error": {**said, **problem.numbers}}


def error(problem: Problem, request_id: str) -> tuple[int, JsonObject]:
    return problem.status, _body(problem)


FLAVOUR = ApiFlavour("openai", ("",), error, lambda problem: event(_body(problem)))
