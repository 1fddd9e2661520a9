"""The outermost middleware: counts, times and logs every request, including refused ones. It does not log the
contents of requests.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from satchel.runtime.engine.stats import SECONDS, Histogram
from satchel.server.flavour import flavour_of
from satchel.server.log import LOG
from satchel.server.telemetry import SpanRecorder

OTHER = "other"  # replaces unknown methods and paths, so that clients cannot fill the memory with names
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


@dataclass
class HttpTraffic:
    """HTTP counters and latency histograms. The keys are bounded: routes and statuses are the server's,
    methods are those of METHODS and OTHER.
    """

    requests: Counter[tuple[str, str, int]] = field(default_factory=Counter)  # by route, method and status
    first_byte: dict[str, Histogram] = field(default_factory=dict)  # seconds, by route
    whole: dict[str, Histogram] = field(default_factory=dict)  # seconds, by route
    active: int = 0  # requests in flight

    def add(self, route: str, method: str, status: int, first: float, whole: float) -> None:
        self.requests[route, method, status] += 1
        self.first_byte.setdefault(route, Histogram(SECONDS)).add(first)
        self.whole.setdefault(route, Histogram(SECONDS)).add(whole)


class Watch:
    """Gives each request its id, and records its outcome."""

    def __init__(self, app: ASGIApp, traffic: HttpTraffic, spans: SpanRecorder) -> None:
        self.app, self.traffic, self.spans = app, traffic, spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        number = f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = number
        method = scope["method"] if scope["method"] in METHODS else OTHER
        facts: dict[str, Any] = {"request_id": number, "method": method, "status": 0}
        named = {"x-request-id", flavour_of(scope["path"], Headers(scope=scope)).id_header}
        began = time.perf_counter()

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                facts["status"] = message["status"]
                ids = ((name.encode(), number.encode()) for name in named)
                message["headers"] = [*message.get("headers", ()), *ids]
            elif "first_byte_seconds" not in facts:
                facts["first_byte_seconds"] = time.perf_counter() - began
            await send(message)

        self.traffic.active += 1
        try:
            with self.spans.request(method, Headers(scope=scope), facts):
                try:
                    await self.app(scope, receive, noted)
                finally:
                    facts["route"] = getattr(scope.get("route"), "path", OTHER)
        finally:
            self.traffic.active -= 1
            self._end(facts, time.perf_counter() - began)

    def _end(self, facts: dict[str, Any], seconds: float) -> None:
        facts["seconds"] = round(seconds, 6)
        first = facts["first_byte_seconds"] = round(facts.get("first_byte_seconds", seconds), 6)
        route, method, status = facts["route"], facts["method"], facts["status"]
        self.traffic.add(route, method if route != OTHER else "", status, first, seconds)
        LOG.info("%s %s %s", method, route, status or "hung up", extra={"facts": facts})
