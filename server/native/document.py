"""GET /openapi.json: the OpenAPI document of all routes. Building it takes a second of CPU time, so it runs
in a thread and streams in progress go on.
"""

from __future__ import annotations

from threading import Lock

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from satchel.server.roles import USER, needs
from satchel.server.route import in_pool

router = APIRouter()
_MAKING = Lock()  # concurrent requests wait for the first one instead of building another document


@router.get("/openapi.json", include_in_schema=False)
@needs(USER)
async def document(request: Request) -> JSONResponse:
    def made() -> JSONResponse:
        with _MAKING:
            return JSONResponse(request.app.openapi())

    return await in_pool(request, "document", made)
