"""The page's static files with their headers. All files are read once into a table, each with its type and an
ETag; a request never looks up a path on the disk.
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
# Not taken from `mimetypes`: some systems map .js to text/plain, which browsers refuse to run.
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
        # Trusted Types: no string becomes markup or code, even through a bug of the page.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    # The browser revalidates each time and gets 304, so that a new server version shows at once.
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
    """The files by their path below static/, with slashes."""
    found = sorted(p for p in STATIC.rglob("*") if p.suffix in TYPES)
    return {path.relative_to(STATIC).as_posix(): _read(path) for path in found}


def _read(path: Path) -> StaticFile:
    body = path.read_bytes()
    return StaticFile(body, TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def answer(request: Request, file: StaticFile) -> Response:
    """The file, or 304 where the browser's copy is current."""
    headers = {**HEADERS, "ETag": file.tag}
    known = request.headers.get("if-none-match", "")
    if known == "*" or file.tag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.type, headers=headers)
