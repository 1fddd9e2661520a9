"""Authorization: every route declares with @needs which role may call it: anyone, a user, or an admin.

The server refuses to start with a route that declares no role, and checks the caller before it reads a body.
A line of a key file is `KEY [user|admin] [SHARE]`: the key's role and its scheduling weight, user and 1 by
default. Without keys, a local caller is an admin: one on a loopback address or a Unix socket, with no proxy.
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
# Headers by which a proxy names the client. Any client can send them too, so their values prove nothing.
FORWARDED = (
    "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "x-client-ip",
    "true-client-ip", "cf-connecting-ip", "via",
)  # fmt: skip


class Role(IntEnum):
    """A role may call the routes of every lower role. PUBLIC needs no key."""

    PUBLIC = 0
    USER = 1
    ADMIN = 2


PUBLIC, USER, ADMIN = Role
KEY_ROLES = {"user": USER, "admin": ADMIN}
LEAST_SHARE, MOST_SHARE = 0.01, 100.0


class KeyRights(NamedTuple):
    """The role and the scheduling weight that a line of a key file gives its key."""

    role: Role = USER
    share: float = 1.0  # a key with share 2 gets twice the tokens per second of a key with share 1


def needs(role: Role) -> Callable[[Endpoint], Endpoint]:
    """Declares the role that may call the route. Stands below the route's decorator."""

    def declared(endpoint: Endpoint) -> Endpoint:
        endpoint.__dict__["role"] = role
        return endpoint

    return declared


def role_of(route: BaseRoute) -> Role | None:
    """The role that the route declares; None where it declares none."""
    found = getattr(getattr(route, "endpoint", None), "role", None)
    return found if isinstance(found, Role) else None


class RoleTable:
    """The roles of all routes, in matching order. TypeError for a route that declares none."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._routes: list[tuple[BaseRoute, Role]] = []
        # By path without parameters, the routes that match it.
        self._of_path: dict[str, list[tuple[BaseRoute, Role]]] = {}
        for route in routes:
            role = role_of(route)
            if role is None:
                raise TypeError(f"{route!r} declares no role: put @needs(...) below its decorator")
            self._routes.append((route, role))
        for path in {getattr(route, "path", "{") for route, _ in self._routes}:
            scope = {"type": "http", "path": path, "method": ""}
            if "{" not in path:
                self._of_path[path] = [one for one in self._routes if one[0].matches(scope)[0] != Match.NONE]

    def role(self, scope: Scope) -> Role:
        """The role that this request needs. An unknown path needs USER, so that a client without a key can't
        probe for routes; a known path with another method needs the role of that path.
        """
        partial: Role | None = None
        known = self._of_path.get(scope["path"]) if not scope.get("root_path") else None
        for route, role in self._routes if known is None else known:
            match = route.matches(scope)[0]
            if match == Match.FULL:
                return role
            if match == Match.PARTIAL and partial is None:
                partial = role
        return USER if partial is None else partial


def check_role(needed: Role, has: Role) -> None:
    """Raises a Problem where the caller's role is below the needed one."""
    if has < needed:
        line = "this needs an admin: a key of --admin-key, or one that stands as 'KEY admin' in the key file"
        raise Problem("forbidden", line, code="admin_only")


def read_keys(lines: Sequence[str]) -> Mapping[str, KeyRights]:
    """The rights of each key, parsed from lines `KEY [user|admin] [SHARE]`. Empty lines and lines that begin
    with # are skipped. RequestError names the invalid line by its number, never by its key.
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
                f"key {number}: it occurs twice, with two roles or shares: take one of the lines out"
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
    """Whether the request comes from this machine: over a Unix socket or from a loopback address, without a
    proxy. A local proxy connects from loopback for remote clients, so a forwarding header means remote.
    """
    if any(name in headers for name in FORWARDED):
        return False
    client, server = scope.get("client"), scope.get("server")
    if client is None:  # a Unix socket's server address has no port; that of a closed TCP connection has one
        return server is not None and server[1] is None
    try:
        address = ipaddress.ip_address(str(client[0]).partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
