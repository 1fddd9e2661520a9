"""Roles that may call a route: anyone, a user, or an admin. Every route declares its role with @needs; the
server refuses to start with a route that declares none, and checks the caller before a body is read.

A key of the list has a role and a share of the machine: `KEY [user|admin] [SHARE]`, user and 1 by default.
Without keys, a caller on this machine is an admin: a loopback address or a Unix socket, and no proxy between.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeVar

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from satchel.errors import RequestError
from satchel.server.problem import Problem

Endpoint = TypeVar("Endpoint", bound=Callable[..., object])
# A proxy puts one of them on what it passes on; what stands in it, anybody can write.
FORWARDED = (
    "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "x-client-ip",
    "true-client-ip", "cf-connecting-ip", "via",
)  # fmt: skip


class Role(IntEnum):
    """Each may call what the ones before it may. PUBLIC needs no key."""

    PUBLIC = 0
    USER = 1
    ADMIN = 2


PUBLIC, USER, ADMIN = Role
KEY_ROLES = {"user": USER, "admin": ADMIN}
LEAST_SHARE, MOST_SHARE = 0.01, 100.0


class KeyRights(NamedTuple):
    """What a line of a key file gives its key. share: its weight beside other keys that have work."""

    role: Role = USER
    share: float = 1.0


def needs(role: Role) -> Callable[[Endpoint], Endpoint]:
    """Declares the role that may call the route. Stands below the route's decorator."""

    def declared(endpoint: Endpoint) -> Endpoint:
        endpoint.__dict__["role"] = role
        return endpoint

    return declared


def role_of(route: BaseRoute) -> Role | None:
    """What the route declares; None where it declares nothing."""
    found = getattr(getattr(route, "endpoint", None), "role", None)
    return found if isinstance(found, Role) else None


class RoleTable:
    """The roles of routes, in the order in which requests find them. TypeError for a route without one."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._routes: list[tuple[BaseRoute, Role]] = []
        for route in routes:
            role = role_of(route)
            if role is None:
                raise TypeError(f"{route!r} declares no role: put @needs(...) below its decorator")
            self._routes.append((route, role))

    def role(self, scope: Scope) -> Role:
        """The role that this request needs. Of a path that is no route it is USER, so that nobody without a
        key learns what there is; of a known path with another method it is the path's.
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
    """A Problem where the caller may not."""
    if has < needed:
        line = "this needs an admin: a key of --admin-key, or one that stands as 'KEY admin' in the key file"
        raise Problem("forbidden", line, code="admin_only")


def read_keys(lines: Sequence[str]) -> Mapping[str, KeyRights]:
    """Keys with their rights, of lines `KEY [user|admin] [SHARE]`. Empty lines and those that begin with #
    are left out. RequestError names the line that is wrong, and never the key.
    """
    found: dict[str, KeyRights] = {}
    for number, line in enumerate(lines, 1):
        key, *words = line.removeprefix("\ufeff").split() or [""]
        if not key or key.startswith("#"):
            continue
        role = words[0] if words else "user"
        if len(words) > 2 or role not in KEY_ROLES:
            raise RequestError(f"key {number}: expected KEY [user|admin] [SHARE]; a key holds no space")
        if key in KEY_ROLES:
            raise RequestError(f"key {number}: {key!r} is a role, not a key: expected KEY {key}")
        rights = KeyRights(KEY_ROLES[role], _share(number, words[1]) if len(words) > 1 else 1.0)
        if found.setdefault(key, rights) != rights:
            raise RequestError(
                f"key {number}: it stands twice, with two roles or shares: take one of the lines out"
            )
    return found


def _share(number: int, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not LEAST_SHARE <= share <= MOST_SHARE:
        expected = f"a number from {LEAST_SHARE:g} to {MOST_SHARE:g}, such as 2"
        raise RequestError(f"key {number}: share: expected {expected}; a key holds no space")
    return share


def is_local(scope: Scope, headers: Headers) -> bool:
    """Whether the request comes from this machine: over a Unix socket, or from a loopback address without a
    proxy between. A proxy on this machine connects from loopback for others, so its headers decide.
    """
    if any(name in headers for name in FORWARDED):
        return False
    client, server = scope.get("client"), scope.get("server")
    if client is None:  # a Unix socket has no port; a TCP connection that is gone has one
        return server is not None and server[1] is None
    try:
        address = ipaddress.ip_address(str(client[0]).partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
