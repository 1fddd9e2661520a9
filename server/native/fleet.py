"""GET /fleet, POST /fleet/scaling, and the routes under /fleet/members: the replicas of a loaded model, which
join and leave while requests run.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field

from satchel.errors import RequestError
from satchel.runtime.fleet.fleet import Fleet
from satchel.runtime.fleet.member import Member
from satchel.server.bodies import BodyRoute
from satchel.server.fields import Body
from satchel.server.flavour import JsonObject
from satchel.server.models import Lease
from satchel.server.problem import Problem, without_paths
from satchel.server.roles import ADMIN, needs
from satchel.server.route import models_of

router = APIRouter(route_class=BodyRoute)
ModelName = Annotated[str, Query(max_length=1000)]


class JoinBody(Body):
    model: str = Field(default="", max_length=1000)
    device: str = Field(default="", max_length=1000)  # as of -dev; "": the share that is free


class LeaveBody(Body):
    model: str = Field(default="", max_length=1000)


class ScaleBody(Body):
    model: str = Field(default="", max_length=1000)
    least: int = Field(ge=1, le=10_000)  # replicas
    most: int = Field(ge=1, le=10_000)


@router.get("/fleet")
@needs(ADMIN)
async def fleet(request: Request, model: ModelName = "") -> JsonObject:
    """The members of a model, with their load and what they have cached."""
    async with models_of(request).look(model) as lease:
        found = fleet_of(lease)
        return {
            "model": lease.name,
            "waiting": found.waiting,
            "requests_moved": found.moved,
            "scaling": asdict(found.scaling.facts()) if found.scaling else None,
            "members": [_told(member, found) for member in list(found.members.values())],
        }


@router.post("/fleet/scaling")
@needs(ADMIN)
async def scale(request: Request, body: ScaleBody) -> JsonObject:
    """Keeps a model between these numbers of replicas until it is unloaded; between them its load decides."""
    async with models_of(request).look(body.model) as lease:
        scaling = fleet_of(lease).scaling
        if scaling is None:
            line = (
                f"{lease.name} has a fixed number of replicas: --replicas 1..4 begins as many as are needed"
            )
            raise Problem("conflict", line, "model", "not_scaled")
        try:
            scaling.bound(body.least, body.most)
        except RequestError as error:
            raise Problem("invalid", str(error), "least") from None
        return asdict(scaling.facts())


@router.post("/fleet/members")
@needs(ADMIN)
async def join(request: Request, body: JoinBody) -> JsonObject:
    """Begins another member. It gets requests once it has loaded the model; GET /fleet says when."""
    async with models_of(request).look(body.model) as lease:
        found = fleet_of(lease)
        return _told(await asyncio.to_thread(found.add, body.device), found)


@router.post("/fleet/members/{member}/drain")
@needs(ADMIN)
async def drain(request: Request, member: str, body: LeaveBody) -> JsonObject:
    """Gives a member no more requests; it leaves when those that it has are done."""
    async with models_of(request).look(body.model) as lease:
        found = fleet_of(lease)
        return await _leave(found, member, partial(found.drain, member))


@router.post("/fleet/members/{member}/replace")
@needs(ADMIN)
async def replace(request: Request, member: str, body: LeaveBody) -> JsonObject:
    """Gives a member no more requests; when those that it has are done, another is begun in its place, from
    the files of Satchel as they are then.
    """
    async with models_of(request).look(body.model) as lease:
        found = fleet_of(lease)
        return await _leave(found, member, partial(found.replace, member))


@router.delete("/fleet/members/{member}")
@needs(ADMIN)
async def leave(request: Request, member: str, model: ModelName = "") -> JsonObject:
    """Takes a member out at once. Its requests go on at the others with the tokens that they have."""
    async with models_of(request).look(model) as lease:
        found = fleet_of(lease)
        return await _leave(found, member, partial(found.remove, member))


async def _leave(found: Fleet, name: str, work: partial[Member]) -> JsonObject:
    if name not in found.members:
        there = ", ".join(found.members)
        raise Problem("missing", f"there is no member {name!r:.40}: there is {there}", "member", "no_member")
    try:
        return _told(await asyncio.to_thread(work), found)
    except RequestError as error:
        raise Problem("conflict", str(error), "member", "last_member") from None


def fleet_of(lease: Lease) -> Fleet:
    """The replicas of a model. A Problem where it has one engine."""
    found = lease.model.model.fleet
    if found is None:
        line = f"{lease.name} has one engine: start the server with --replicas N to have several"
        raise Problem("conflict", line, "model", "no_fleet")
    return found


def _told(member: Member, found: Fleet) -> JsonObject:
    facts = asdict(member.facts(found.lengths))
    return {**facts, "trouble": without_paths(facts["trouble"])}
