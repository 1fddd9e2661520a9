"""GET /version."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter

router = APIRouter()


@router.get("/version")
async def served_version() -> dict[str, str]:
    return {"version": version("satchel")}
