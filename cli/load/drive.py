"""Runs a load against a server: sends each request at its time, with limited concurrency, until a bound is
reached.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from satchel.cli.load.requests import LoadRequest
from satchel.cli.load.stream import Outcome, ask
from satchel.errors import RequestError

if TYPE_CHECKING:
    import httpx

PATIENCE = 600.0  # seconds without a byte after which a response fails


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """The server under load."""

    url: str  # with or without /v1 at its end
    model: str = ""  # the server's name of the model
    key: str = ""

    @property
    def base(self) -> str:
        """The base URL of the OpenAI-style routes."""
        bare = self.url.rstrip("/")
        return bare if bare.endswith("/v1") else f"{bare}/v1"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a load. 0 means no bound."""

    requests: int = 0  # the number of requests to send
    seconds: float = 0.0  # after so long no request is sent; those in flight finish
    concurrency: int = 0  # the largest number of requests in flight
    grace: float = 0.0  # seconds after the last request is sent within which responses must end


@dataclass(frozen=True, slots=True)
class Driven:
    """The result of a load."""

    outcomes: list[Outcome]
    seconds: float
    most: int  # the largest number of requests in flight
    given_up: int = 0  # requests that did not end within the grace period


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of a load, which tests simulate."""

    now: Callable[[], float] = time.perf_counter  # monotonic seconds
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep  # waits for so many seconds


async def drive(
    server: LoadTarget,
    requests: Iterator[LoadRequest],
    bounds: Bounds,
    notify: Callable[[Outcome], None] | None = None,
    clock: Clock = Clock(),
) -> Driven:
    """Sends the requests and waits for the last. notify: called with each outcome.

    A request that is due while all places are taken waits for one, and its wait counts as the server's.
    """
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    timeout = httpx.Timeout(PATIENCE, connect=10.0)
    async with httpx.AsyncClient(
        base_url=server.base, headers=server.headers, limits=limits, timeout=timeout, trust_env=False
    ) as client:
        return await _Load(client, server.model, bounds, notify, clock).run(requests)


class _Load:
    """A load in progress."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        model: str,
        bounds: Bounds,
        notify: Callable[[Outcome], None] | None,
        clock: Clock,
    ) -> None:
        self.client, self.model, self.bounds, self.notify, self.clock = client, model, bounds, notify, clock
        self.outcomes: list[Outcome] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.places = asyncio.Semaphore(bounds.concurrency) if bounds.concurrency else None
        self.now = self.most = 0

    async def run(self, requests: Iterator[LoadRequest]) -> Driven:
        self.start = self.clock.now()
        for sent, request in enumerate(requests):
            if (self.bounds.requests and sent >= self.bounds.requests) or not await self.turn(request):
                break
            task = asyncio.create_task(self.one(request))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        late: set[asyncio.Task[None]] = set()
        if self.tasks:
            done, late = await asyncio.wait(self.tasks, timeout=self.bounds.grace or None)
            for task in done:
                task.result()
        seconds = self.clock.now() - self.start
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return Driven(self.outcomes, seconds, self.most, len(late))

    async def turn(self, request: LoadRequest) -> bool:
        """Waits until the request is due and the concurrency allows it. False where the load's time ends
        first.
        """
        end = self.start + self.bounds.seconds if self.bounds.seconds else float("inf")
        due = self.start + request.due
        if due >= end:
            return False
        await self.clock.sleep(max(0.0, due - self.clock.now()))
        if self.places is None:
            return self.clock.now() < end
        left = None if end == float("inf") else max(0.0, end - self.clock.now())
        try:
            await asyncio.wait_for(self.places.acquire(), left)
        except TimeoutError:
            return False
        return True

    async def one(self, request: LoadRequest) -> None:
        body = {"model": self.model, **request.body} if self.model else request.body
        self.now += 1
        self.most = max(self.most, self.now)
        due = self.start + request.due if request.due else self.clock.now()
        outcome = await ask(self.client, LoadRequest(request.path, body, request.due, request.leave), due)
        self.now -= 1
        if self.places is not None:
            self.places.release()
        self.outcomes.append(outcome)
        if self.notify is not None:
            self.notify(outcome)


def first_model(server: LoadTarget) -> str:
    """The first model that the server lists. RequestError where it lists none."""
    return model_names(server)[0]


def model_names(server: LoadTarget) -> list[str]:
    """The models that the server lists, one or more. RequestError where it lists none."""
    import httpx

    try:
        with httpx.Client(trust_env=False, timeout=30.0) as client:
            listed = client.get(f"{server.base}/models", headers=server.headers)
        names = [str(m["id"]) for m in listed.raise_for_status().json()["data"]]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        more = "start it, or correct --url" if isinstance(error, httpx.ConnectError) else "name one with -m"
        raise RequestError(f"{server.base}/models: no list of models: {error}; {more}") from None
    if not names:
        raise RequestError(f"{server.base}/models lists no model: name one with -m")
    return names
