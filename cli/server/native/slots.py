"""GET /slots, and POST /slots/{id} to save what was computed for a conversation and to bring it back. A slot
is a name that requests give by id_slot: any of them may run anywhere.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field

from satchel.cli.server.bodies import BodyRoute
from satchel.cli.server.dialect import JsonObject
from satchel.cli.server.fields import Body
from satchel.cli.server.models import Lease
from satchel.cli.server.problem import Problem
from satchel.cli.server.route import caller_of, check_admin, in_pool, models_of, settings_of

router = APIRouter(route_class=BodyRoute)
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
ModelName = Annotated[str, Query(max_length=1000)]


class SlotBody(Body):
    filename: str | None = None
    model: str = Field(default="", max_length=1000)


@router.get("/slots")
async def slots(request: Request, model: ModelName = "", fail_on_no_slot: bool = False) -> list[JsonObject]:
    async with models_of(request).use(model, caller_of(request).user) as lease:
        loaded, stats = lease.model.model, await lease.model.stats()
        count = loaded.cache.slots
        if fail_on_no_slot and stats.running >= count:
            raise Problem("busy", "all slots are in use", code="no_slot", retry_after=1)
        known = lease.entry.slots
        return [
            {
                "id": i,
                "n_ctx": loaded.context,
                "speculative": loaded.options.speculation is not None,
                "is_processing": i < stats.running,
                "n_prompt_tokens_cache": len(known[i][0]) if i in known else 0,
            }
            for i in range(count)
        ]


@router.post("/slots/{slot}")
async def act(
    request: Request, slot: int, action: Literal["save", "restore", "erase"], body: SlotBody
) -> JsonObject:
    check_admin(request)
    async with models_of(request).use(body.model, caller_of(request).user) as lease:
        count = lease.model.model.cache.slots
        if not 0 <= slot < count:
            raise Problem("invalid", f"slot is {slot}: there are {count}", "slot")
        if action == "erase":
            known = lease.entry.slots.pop(slot, ([], ""))
            return {"id_slot": slot, "n_erased": len(known[0])}
        path = _path(request, body.filename)
        return await (_save if action == "save" else _restore)(request, lease, slot, path)


def _path(request: Request, name: str | None) -> Path:
    """A file in the folder of saved states. A Problem for a name that could lead out of it."""
    folder = settings_of(request).states
    if folder is None:
        line = "conversations are not saved here: start the server with --slot-save-path DIR"
        raise Problem("unsupported", line, "action")
    if name is None or not NAME.fullmatch(name):
        raise Problem("invalid", "filename: a name of A-Z a-z 0-9 . _ - is wanted", "filename")
    return folder / name


async def _save(request: Request, lease: Lease, slot: int, path: Path) -> JsonObject:
    ids, salt = lease.entry.slots.get(slot, ([], ""))
    if not ids:
        raise Problem("invalid", f"slot {slot}: no request named it by id_slot yet", "slot")
    if salt and not salt.startswith(caller_of(request).salt):
        raise Problem("forbidden", f"slot {slot} is another's")
    began = time.perf_counter()
    saved = await lease.model.save_state(path, ids, salt=salt)
    told = {"id_slot": slot, "filename": path.name, "n_saved": saved, "n_written": path.stat().st_size}
    return {**told, "timings": {"save_ms": _milliseconds(began)}}


async def _restore(request: Request, lease: Lease, slot: int, path: Path) -> JsonObject:
    if not await in_pool(request, "file", path.is_file):
        raise Problem("missing", f"filename: there is no {path.name}", "filename")
    salt = caller_of(request).salt
    began = time.perf_counter()
    found = await lease.model.restore_state(path, salt=f"{salt}/" if salt else "")
    lease.entry.slots[slot] = (list(found.ids), f"{salt}/" if salt else "")
    told: JsonObject = {"id_slot": slot, "filename": path.name, "n_restored": found.tokens}
    told |= {"n_read": path.stat().st_size, "timings": {"restore_ms": _milliseconds(began)}}
    return {**told, "warnings": [found.note]} if found.note else told


def _milliseconds(began: float) -> float:
    return round((time.perf_counter() - began) * 1e3, 3)
