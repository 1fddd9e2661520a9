"""GET / and /dashboard, their files below /page/, and the sampling options that the page offers."""

from __future__ import annotations

from dataclasses import fields
from importlib.metadata import version

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from satchel.cli.server.flavour import JsonObject
from satchel.cli.server.page.files import answer, files
from satchel.cli.server.problem import Problem
from satchel.cli.server.roles import PUBLIC, needs
from satchel.runtime.sampling import RANGES, Sampling

router = APIRouter(include_in_schema=False)
READ = ["GET", "HEAD"]
# Ollama clients look for this line to detect a server.
GREETING = "Ollama is running"


@router.api_route("/", methods=READ)
@needs(PUBLIC)
async def chat_page(request: Request) -> Response:
    """The page for a browser; other clients get Ollama's greeting."""
    if "text/html" not in request.headers.get("accept", ""):
        return PlainTextResponse(GREETING)
    response = answer(request, files()["index.html"])
    response.headers["Vary"] = "Accept"
    return response


@router.api_route("/dashboard", methods=READ)
@needs(PUBLIC)
async def dashboard_page(request: Request) -> Response:
    return answer(request, files()["dashboard.html"])


@router.get("/page/options")
@needs(PUBLIC)
async def options() -> JsonObject:
    """The server's version, and the sampling options with the library's ranges and defaults."""
    defaults = {f.name: getattr(Sampling(), f.name) for f in fields(Sampling)}
    ranges = {name: {"low": low, "high": high, "default": defaults[name]} for name, low, high in RANGES}
    return {"version": version("satchel"), "sampling": ranges}


@router.api_route("/page/{path:path}", methods=READ)
@needs(PUBLIC)
async def static_file(request: Request, path: str) -> Response:
    file = files().get(path)
    if file is None:
        raise Problem("missing", f"the page has no file {path!r:.100}")
    return answer(request, file)
