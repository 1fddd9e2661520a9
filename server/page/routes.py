"""GET / and /dashboard, their files below /page/, and the sampling options that the page offers."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from satchel.runtime.option import options_of
from satchel.runtime.sampling import Sampling
from satchel.server.flavour import JsonObject
from satchel.server.page.files import answer, files
from satchel.server.problem import Problem
from satchel.server.roles import PUBLIC, needs

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
    ranges = {
        name: {"low": one.low, "high": one.high, "default": one.default}
        for name, one in options_of(Sampling).items()
        if one.has_range
    }
    return {"version": version("satchel"), "sampling": ranges}


@router.api_route("/page/{path:path}", methods=READ)
@needs(PUBLIC)
async def static_file(request: Request, path: str) -> Response:
    file = files().get(path)
    if file is None:
        raise Problem("missing", f"the page has no file {path!r:.100}")
    return answer(request, file)
