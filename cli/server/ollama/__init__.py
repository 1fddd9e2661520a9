"""Ollama's API: NDJSON streams below /api, and errors as one string."""

from __future__ import annotations

from satchel.cli.server.flavour import ApiFlavour, JsonObject
from satchel.cli.server.problem import Problem
from satchel.cli.server.stream import line


def error(problem: Problem, request_id: str) -> tuple[int, JsonObject]:
    return problem.status, {"error": problem.message, **problem.numbers}


FLAVOUR = ApiFlavour("ollama", ("/api",), error, lambda problem: line({"error": problem.message}))
