"""GET /openapi.json: every route in words for programs. Making it takes a second of the processor, so
a thread makes it: answers under way go on.
"""

from __future__ import annotations

from threading import Lock

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from satchel.server.roles import USER, needs
from satchel.server.route import in_pool

router = APIRouter()
_MAKING = Lock()  # concurrent requests wait instead of making another


@router.get("/openapi.json", include_in_schema=False)
@needs(USER)
async def document(request: Request) -> JSONResponse:
    def made() -> JSONResponse:
        with _MAKING:
            return JSONResponse(request.app.openapi())

    return await in_pool(request, "document", made)
