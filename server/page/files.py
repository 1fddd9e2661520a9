"""The page's static files as they are sent: read once, each with its type and a tag of its bytes. What is not
in the table does not exist, so no path is ever looked up on the disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

STATIC = Path(__file__).parent / "static"
# Stated here, because the table of some systems calls a script text/plain, and browsers then refuse it.
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # No text can become markup or code, not even by a mistake of the page's own.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    # Asked for again each time, and answered by 304: a new version of the server is seen at once.
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    body: bytes
    type: str
    tag: str


@cache
def files() -> Mapping[str, StaticFile]:
    """By path below static/, with slashes."""
    found = sorted(p for p in STATIC.rglob("*") if p.suffix in TYPES)
    return {path.relative_to(STATIC).as_posix(): _read(path) for path in found}


def _read(path: Path) -> StaticFile:
    body = path.read_bytes()
    return StaticFile(body, TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def answer(request: Request, file: StaticFile) -> Response:
    """The file, or 304 where the browser has it already."""
    headers = {**HEADERS, "ETag": file.tag}
    known = request.headers.get("if-none-match", "")
    if known == "*" or file.tag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.type, headers=headers)
