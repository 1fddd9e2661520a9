"""Ollama's dialect: lines of JSON below /api, and errors as one text."""

from __future__ import annotations

from satchel.cli.server.dialect import Dialect, JsonObject
from satchel.cli.server.problem import Problem
from satchel.cli.server.stream import line


def error(problem: Problem, request_id: str) -> tuple[int, JsonObject]:
    return problem.status, {"error": problem.message, **problem.numbers}


DIALECT = Dialect("ollama", ("/api",), error, lambda problem: line({"error": problem.message}))
