"""POST /page/pdf: the text of a PDF that a user adds to a question."""

from __future__ import annotations

import base64
import binascii
import json
import subprocess
from functools import partial

from fastapi import APIRouter, Request
from pydantic import Field

from satchel.runtime.children import interpreter, module_path, start
from satchel.server.bodies import BodyRoute
from satchel.server.fields import Body
from satchel.server.flavour import JsonObject
from satchel.server.page.pdf_text import MEMORY, SECONDS
from satchel.server.problem import Problem
from satchel.server.roles import USER, needs
from satchel.server.route import in_pool, unknown_fields

router = APIRouter(route_class=BodyRoute, include_in_schema=False)
MOST_PDF = 8 << 20  # bytes
PATIENCE = 120.0  # seconds until the reader is ended, where a busy machine gives it little processor time
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " from satchel.server.page.pdf_text import main; main()"
)


class PdfBody(Body):
    """data: the file in base64."""

    data: str = Field(max_length=MOST_PDF * 4 // 3 + 4)


@router.post("/page/pdf")
@needs(USER)
async def pdf(request: Request, body: PdfBody) -> JsonObject:
    unknown_fields(request, body)
    return await in_pool(request, "page", partial(text_of, body.data))


def text_of(encoded: str) -> JsonObject:
    """{"text", "pages", "read"} of a PDF in base64. Raises a Problem where it holds no text."""
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise Problem("invalid", "data: expected a file in base64", "data") from None
    command = [*interpreter(), "-c", START, json.dumps(module_path())]
    pipe = subprocess.PIPE
    process = start(command, isolated=True, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
    with process:
        try:
            said, _ = process.communicate(data, PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            said = b""
    if process.returncode or not said:
        line = f"the PDF needs more than {SECONDS} seconds or {MEMORY >> 30} GB to be read: split it"
        raise Problem("invalid", line, "data")
    found: JsonObject = json.loads(said)
    if "error" in found:
        raise Problem("invalid", f"the PDF cannot be used: {found['error']}", "data")
    return found
