"""Roles of callers: public, user, admin. Every route declares the role that it needs with @needs; the server
refuses to start with a route that declares none, and checks the role before it reads the body.

Each line of the key list gives a key its role: `KEY [user|admin]`, user by default. Without keys, a caller on
this machine is an admin: it connects from loopback or over a Unix socket, and not through a proxy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TypeVar

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from satchel.cli.server.problem import Problem
from satchel.quant import RequestError

Endpoint = TypeVar("Endpoint", bound=Callable[..., object])
# A proxy adds one of these headers. Only its presence is used: a client can forge its value.
FORWARDED = (
    "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "x-client-ip",
    "true-client-ip", "cf-connecting-ip", "via",
)  # fmt: skip


class Role(IntEnum):
    """Each role includes the ones before it. PUBLIC needs no key."""

    PUBLIC = 0
    USER = 1
    ADMIN = 2


PUBLIC, USER, ADMIN = Role
KEY_ROLES = {"user": USER, "admin": ADMIN}


def needs(role: Role) -> Callable[[Endpoint], Endpoint]:
    """Declares the role that a route needs. The decorator stands below the route's own."""

    def declared(endpoint: Endpoint) -> Endpoint:
        endpoint.__dict__["role"] = role
        return endpoint

    return declared


def role_of(route: BaseRoute) -> Role | None:
    """The role that the route declares; None where it declares none."""
    found = getattr(getattr(route, "endpoint", None), "role", None)
    return found if isinstance(found, Role) else None


class RoleTable:
    """The role of every route, in matching order. TypeError for a route without a role."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._routes: list[tuple[BaseRoute, Role]] = []
        for route in routes:
            role = role_of(route)
            if role is None:
                raise TypeError(f"{route!r} declares no role: put @needs(...) below its decorator")
            self._routes.append((route, role))

    def role(self, scope: Scope) -> Role:
        """The role that this request needs. An unknown path needs USER, so that a caller without a key cannot
        probe for paths; a known path with a wrong method needs the path's role.
        """
        partial: Role | None = None
        for route, role in self._routes:
            match = route.matches(scope)[0]
            if match == Match.FULL:
                return role
            if match == Match.PARTIAL and partial is None:
                partial = role
        return USER if partial is None else partial


def check_role(needed: Role, has: Role) -> None:
    """Raises a Problem where the caller's role is too low."""
    if has < needed:
        line = "this needs an admin: a key of --admin-key, or one that stands as 'KEY admin' in the key file"
        raise Problem("forbidden", line, code="admin_only")


def read_keys(lines: Sequence[str]) -> Mapping[str, Role]:
    """Parses lines `KEY [user|admin]`. Empty lines and comments (#) are skipped. RequestError names the
    number of an invalid line, never the key.
    """
    found: dict[str, Role] = {}
    for number, line in enumerate(lines, 1):
        words = line.removeprefix("\ufeff").split()
        if not words or words[0].startswith("#"):
            continue
        key, role = words[0], words[1] if len(words) > 1 else "user"
        if len(words) > 2 or role not in KEY_ROLES:
            raise RequestError(f"key {number}: expected KEY, KEY user or KEY admin; a key holds no space")
        if key in KEY_ROLES:
            raise RequestError(f"key {number}: {key!r} is a role, not a key: expected KEY {key}")
        if found.setdefault(key, KEY_ROLES[role]) != KEY_ROLES[role]:
            raise RequestError(f"key {number}: it stands twice, with two roles: take one of the lines out")
    return found


def is_local(scope: Scope, headers: Headers) -> bool:
    """Whether the request comes from this machine: over a Unix socket, or from a loopback address and not
    through a proxy. A local proxy connects from loopback for remote clients; its headers give it away.
    """
    if any(name in headers for name in FORWARDED):
        return False
    client, server = scope.get("client"), scope.get("server")
    if client is None:  # a Unix socket has no port; a TCP connection that was reset has one
        return server is not None and server[1] is None
    try:
        address = ipaddress.ip_address(str(client[0]).partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
