"""GET /slots, and POST /slots/{id} to save, restore or erase the KV state of a conversation.

A slot id is only a name that requests give as id_slot; the scheduler may run them in any engine slot. Slot
ids and saved files are separate for each API key: no key sees another's.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field

from satchel.server.bodies import BodyRoute
from satchel.server.fields import Body
from satchel.server.flavour import JsonObject
from satchel.server.models import Lease, pool_tokens
from satchel.server.problem import Problem
from satchel.server.roles import USER, needs
from satchel.server.route import caller_of, in_pool, models_of, settings_of

router = APIRouter(route_class=BodyRoute)
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
ModelName = Annotated[str, Query(max_length=1000)]


class SlotBody(Body):
    filename: str | None = None
    model: str = Field(default="", max_length=1000)


@router.get("/slots")
@needs(USER)
async def slots(request: Request, model: ModelName = "", fail_on_no_slot: bool = False) -> list[JsonObject]:
    async with models_of(request).look(model) as lease:
        loaded, stats = lease.model.model, await lease.model.stats()
        count = loaded.slots
        if fail_on_no_slot and stats.running >= count:
            raise Problem("busy", "all slots are in use", code="no_slot", retry_after=1)
        known, owner = lease.entry.slots, caller_of(request).salt
        return [
            {
                "id": i,
                "n_ctx": loaded.context,
                **pool_tokens(loaded, stats),
                "speculative": loaded.options.speculation is not None,
                "is_processing": i < stats.running,
                "n_prompt_tokens_cache": len(known[owner, i][0]) if (owner, i) in known else 0,
            }
            for i in range(count)
        ]


@router.post("/slots/{slot}")
@needs(USER)
async def act(
    request: Request, slot: int, action: Literal["save", "restore", "erase"], body: SlotBody
) -> JsonObject:
    async with models_of(request).use(body.model, caller_of(request).user) as lease:
        count = lease.model.model.slots
        if not 0 <= slot < count:
            raise Problem("invalid", f"slot is {slot}: there are {count}", "slot")
        if action == "erase":
            known = lease.entry.slots.pop((caller_of(request).salt, slot), ([], ""))
            return {"id_slot": slot, "n_erased": len(known[0])}
        path = await in_pool(request, "file", partial(_path, request, body.filename))
        return await (_save if action == "save" else _restore)(request, lease, slot, path)


def _path(request: Request, name: str | None) -> Path:
    """A file in the caller's own folder of saved states. A Problem for a name that could leave the folder."""
    folder = settings_of(request).states
    if folder is None:
        line = "conversations are not saved here: start the server with --slot-save-path DIR"
        raise Problem("unsupported", line, "action")
    if name is None or not NAME.fullmatch(name):
        raise Problem("invalid", "filename: expected a name of A-Z a-z 0-9 . _ -", "filename")
    for own in (folder, own_folder(folder, caller_of(request).salt)):
        close_folder(own)
    return own / name


def own_folder(folder: Path, salt: str) -> Path:
    """The folder of the caller with this salt; without keys, the folder itself."""
    return folder / hashlib.sha256(f"slots/{salt}".encode()).hexdigest()[:32] if salt else folder


def close_folder(folder: Path) -> None:
    """Creates the folder where needed, and removes access for other users of the machine. A shared folder
    such as /tmp (sticky bit) is not changed.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.name == "posix":
        found = folder.stat()
        if found.st_mode & 0o077 and found.st_uid == os.getuid() and not found.st_mode & stat.S_ISVTX:
            folder.chmod(0o700)


async def _save(request: Request, lease: Lease, slot: int, path: Path) -> JsonObject:
    ids, salt = lease.entry.slots.get((caller_of(request).salt, slot), ([], ""))
    if not ids:
        raise Problem("invalid", f"slot {slot}: no request named it by id_slot yet", "slot")
    await in_pool(request, "file", partial(_check_room, path, settings_of(request).states_bytes))
    began = time.perf_counter()
    saved = await lease.model.save_state(path, ids, salt=salt)
    result = {"id_slot": slot, "filename": path.name, "n_saved": saved, "n_written": path.stat().st_size}
    return {**result, "timings": {"save_ms": _milliseconds(began)}}


def _check_room(path: Path, most: int) -> None:
    """Raises a Problem where the caller's other files fill its quota."""
    taken = sum(p.stat().st_size for p in path.parent.iterdir() if p != path and p.is_file())
    if taken >= most:
        line = f"your saved conversations have {taken:,} bytes of {most:,}: save under an old name"
        raise Problem("conflict", line, "filename", "states_full")


async def _restore(request: Request, lease: Lease, slot: int, path: Path) -> JsonObject:
    if not await in_pool(request, "file", path.is_file):
        raise Problem("missing", f"filename: there is no {path.name}", "filename")
    salt = caller_of(request).salt
    began = time.perf_counter()
    found = await lease.model.restore_state(path, salt=f"{salt}/" if salt else "")
    lease.entry.slots[salt, slot] = (list(found.ids), f"{salt}/" if salt else "")
    result: JsonObject = {"id_slot": slot, "filename": path.name, "n_restored": found.tokens}
    result |= {"n_read": path.stat().st_size, "timings": {"restore_ms": _milliseconds(began)}}
    return {**result, "warnings": [found.note]} if found.note else result


def _milliseconds(began: float) -> float:
    return round((time.perf_counter() - began) * 1e3, 3)
