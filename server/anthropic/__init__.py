"""Anthropic's Messages API: routes, and errors in its shape."""

from __future__ import annotations

from satchel.server.flavour import ApiFlavour, JsonObject
from satchel.server.problem import Problem
from satchel.server.stream import event

HEADER = "anthropic-version"
OVERLOADED = 529  # Anthropic's HTTP status of an overloaded server

# Error types by kind of problem; every other kind is an invalid_request_error.
TYPES = {
    "key": "authentication_error",
    "forbidden": "permission_error",
    "missing": "not_found_error",
    "large": "request_too_large",
    "busy": "overloaded_error",
    "loading": "overloaded_error",
    "internal": "api_error",
    "engine": "api_error",
}


def _type(problem: Problem) -> str:
    if problem.status == 429:
        return "rate_limit_error"
    return TYPES.get(problem.kind, "api_error" if problem.status >= 500 else "invalid_request_error")


def _body(problem: Problem) -> JsonObject:
    said = {"type": _type(problem), "message": problem.message, **problem.numbers}
    return {"type": "error", "error": said}


def error(problem: Problem, request_id: str) -> tuple[int, JsonObject]:
    status = OVERLOADED if problem.kind == "busy" and problem.status == 503 else problem.status
    return status, {**_body(problem), "request_id": request_id}


def late(problem: Problem) -> bytes:
    return event(_body(problem), "error")


FLAVOUR = ApiFlavour("anthropic", ("/v1/messages",), error, late, header=HEADER, id_header="request-id")
