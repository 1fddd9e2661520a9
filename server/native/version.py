"""GET /version: the version of the installed package."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter

from satchel.server.roles import USER, needs

router = APIRouter()


@router.get("/version")
@needs(USER)
async def served_version() -> dict[str, str]:
    return {"version": version("satchel")}
