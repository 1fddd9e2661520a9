"""ASGI middleware before every route: checks the Host and Origin, the API key and its role, and the size and
shape of the body. It is plain ASGI, so that no part of a request is parsed before the request is allowed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from satchel.server.bodies import JSON, BodyBudget, BodyReservation, parsed
from satchel.server.flavour import ApiFlavour, flavour_of
from satchel.server.generation import Caller
from satchel.server.problem import Problem
from satchel.server.roles import ADMIN, PUBLIC, USER, Role, RoleTable, check_role, is_local
from satchel.server.settings import LOOPBACK, MOST_PRIORITY, ServerSettings

# Values of Sec-Fetch-Site: of programs, of typed addresses, and of the server's own page.
OWN_SITES = ("", "none", "same-origin")


class RequestGuard:
    """Passes a request on with `caller` in its state, or answers with an error of its API flavour."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, roles: RoleTable) -> None:
        self.app, self.settings, self._roles = app, settings, roles
        self._keys = {**dict.fromkeys(settings.api_keys, USER), **dict.fromkeys(settings.admin_keys, ADMIN)}
        # Without keys, the Host header is checked against DNS rebinding: a foreign page's name would point
        # here.
        self._hosts = frozenset(settings.hosts or (() if self._keys else LOOPBACK))
        self._bodies = BodyBudget(settings.most_bodies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        number = scope["state"]["request_id"]
        headers = Headers(scope=scope)
        flavour = flavour_of(scope["path"], headers)
        held: BodyReservation | None = None
        try:
            try:
                needed = self._roles.role(scope)
                self._check_origin(headers)
                self._check_site(scope, headers, needed)
                caller = scope["state"]["caller"] = self._caller(scope, headers, needed)
                check_role(needed, caller.role)
                if scope["method"] in ("POST", "PUT", "PATCH", "DELETE"):
                    held = self._bodies.hold(caller.user)
                    body = await self._body(headers, receive, held)
                    if body:
                        pools = scope["app"].state.models.pools
                        scope["state"][JSON] = (await parsed(body, pools, caller.user, held), len(body))
                        del body  # only the parsed value is needed from here on
            except Problem as problem:
                await refuse(flavour, problem, number, send)
                return
            await self.app(scope, _behind_body(receive, read=held is not None), send)
        finally:
            if held is not None:
                held.release()

    def _check_origin(self, headers: Headers) -> None:
        """Refuses requests that a web page of another site makes through the browser, by Host and Origin."""
        host = headers.get("host", "")
        if self._hosts and _name(host) not in self._hosts:
            line = f"the host {host!r:.100} is not one of this server's: start it with --allowed-host"
            raise Problem("forbidden", line)
        origin = headers.get("origin")
        same = origin is not None and origin.partition("://")[2].lower() == host.lower()
        if origin is not None and not same and origin not in self.settings.origins:
            line = f"the origin {origin!r:.100} is not allowed: start the server with --cors-origins"
            raise Problem("forbidden", line)

    def _check_site(self, scope: Scope, headers: Headers, needed: Role) -> None:
        """Refuses cross-site requests without an Origin header (images, forms, links), by Sec-Fetch-Site.
        Only a link to a public page is followed.
        """
        site = headers.get("sec-fetch-site", "")
        if site in OWN_SITES or headers.get("origin") in self.settings.origins:
            return
        fetch = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
        visit = scope["method"] in ("GET", "HEAD") and fetch == ("navigate", "document")
        if not (visit and needed == PUBLIC):
            line = f"a page of another site ({site!r:.40}) may not call: start the server with --cors-origins"
            raise Problem("forbidden", line)

    def _caller(self, scope: Scope, headers: Headers, needed: Role) -> Caller:
        if not self._keys:
            return Caller(role=ADMIN if is_local(scope, headers) else USER)
        if needed == PUBLIC:
            return Caller(role=PUBLIC)
        given = headers.getlist("x-api-key")
        given += [v[7:].strip() for v in headers.getlist("authorization") if v[:7].lower() == "bearer "]
        role = _role_of(given[0], self._keys) if len(set(given)) == 1 else None
        if role is None:
            raise Problem(
                "key", "no valid API key: send it as 'Authorization: Bearer KEY'", code="invalid_api_key"
            )
        mark = hashlib.sha256(given[0].encode("utf-8", "surrogateescape")).hexdigest()[:32]
        most = self.settings.most_priority if role < ADMIN else MOST_PRIORITY
        return Caller(mark[:8], mark, role, most, self.settings.key_shares.get(given[0], 1.0))

    async def _body(self, headers: Headers, receive: Receive, held: BodyReservation) -> bytes:
        announced = headers.get("content-length", "")
        if announced.isascii() and announced.isdigit() and int(announced) > self.settings.most_body:
            raise _large(self.settings.most_body)
        try:
            async with asyncio.timeout(self.settings.body_seconds):
                body = await _whole(receive, self.settings.most_body, held)
        except TimeoutError:
            line = f"the body did not come whole within {self.settings.body_seconds:g} seconds"
            raise Problem("timeout", line) from None
        if body:
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise Problem("media", f"the body is {kind or 'of no kind'}: send it as application/json")
        return body


async def _whole(receive: Receive, most: int, held: BodyReservation) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem("invalid", "the client hung up")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise _large(most)
        held.grow(size)
        if not message.get("more_body"):
            return b"".join(parts)


def _large(most: int) -> Problem:
    return Problem("large", f"the body has more than {most:,} bytes, which is the most")


def _role_of(given: str, keys: Mapping[str, Role]) -> Role | None:
    """The key's role, None for an unknown key. Takes constant time, so that timing reveals nothing of the
    keys.
    """
    data, found = given.encode("utf-8", "surrogateescape"), None
    for key, role in keys.items():
        if hmac.compare_digest(data, key.encode()):
            found = role
    return found


def _name(host: str) -> str:
    """A host without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()


def _behind_body(receive: Receive, read: bool) -> Receive:
    """`receive` for the route: an empty body where the guard has read it, then the client's disconnect."""

    async def following() -> Message:
        nonlocal read
        if not read:
            return await receive()
        read = False
        return {"type": "http.request", "body": b"", "more_body": False}

    return following


async def refuse(flavour: ApiFlavour, problem: Problem, number: str, send: Send) -> None:
    """Sends the problem as the response."""
    status, body = flavour.error(problem, number)
    data = json.dumps(body, ensure_ascii=False).encode()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(data)),
        **problem.headers,
    }
    raw = [(k.lower().encode(), v.encode()) for k, v in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": data})
