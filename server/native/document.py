"""GET /openapi.json: the OpenAPI document of all routes. Building it takes a second of CPU time, so it runs
in a thread and streams in progress go on; the bytes are kept for later requests.
"""

from __future__ import annotations

import json
from threading import Lock

from fastapi import APIRouter, Request, Response

from satchel.server.roles import USER, needs
from satchel.server.route import in_pool

router = APIRouter()
_MAKING = Lock()  # concurrent requests wait for the first one instead of building another document


@router.get("/openapi.json", include_in_schema=False)
@needs(USER)
async def document(request: Request) -> Response:
    state = request.app.state

    def make() -> None:
        with _MAKING:
            if not hasattr(state, "document"):
                state.document = json.dumps(request.app.openapi(), separators=(",", ":")).encode()

    if not hasattr(state, "document"):
        await in_pool(request, "document", make)
    return Response(state.document, media_type="application/json")
