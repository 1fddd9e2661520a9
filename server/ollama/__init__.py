"""Ollama's API: NDJSON streams below /api, and errors as one string."""

from __future__ import annotations

from satchel.server.flavour import ApiFlavour, JsonObject
from satchel.server.problem import Problem
from satchel.server.stream import line


def error(problem: Problem, request_id: str) -> tuple[int, JsonObject]:
    return problem.status, {"error": problem.message, **problem.numbers}


FLAVOUR = ApiFlavour("ollama", ("/api",), error, lambda problem: line({"error": problem.message}))
