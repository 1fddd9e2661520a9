"""`satchel bench --url`: its options and its run."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from satchel.cli.console import err, note
from satchel.cli.groups import option, wrong
from satchel.cli.load.drive import Bounds, Driven, LoadTarget, drive, first_model
from satchel.cli.load.requests import LoadRequest, LoadShape, made_up, recorded, with_leavers
from satchel.cli.load.stream import Outcome
from satchel.cli.load.summary import COLUMNS, summary
from satchel.cli.tables import writer
from satchel.errors import RequestError

REQUESTS, CONCURRENCY = 64, 8  # defaults
MEANING = """\
first: from when a request was due to the first piece of its answer; next: from one piece to the next
left: clients that went away (--disconnect); refused: 429 or 503; at once: most requests under way together"""


@dataclass(frozen=True, slots=True)
class UrlOptions:
    """The load on a server, and where it ends."""

    url: Annotated[str, option("--url", help="Measure the OpenAI-style server here instead of a file.")] = ""
    rate: Annotated[
        float, option("--rate", min=0, help="With --url: mean requests a second, coming at random.")
    ] = 0.0
    concurrency: Annotated[
        int, option("--concurrency", min=0, help="With --url: most requests at once; 0: any number.")
    ] = 0
    requests: Annotated[int, option("--requests", min=0, help="With --url: end after so many.")] = 0
    seconds: Annotated[float, option("--seconds", min=0, help="With --url: begin none after so long.")] = 0.0
    load: Annotated[
        Path | None,
        option("--load", metavar="FILE.jsonl", help="With --url: recorded requests."),
    ] = None
    text: Annotated[bool, option("--text", help="With --url: ask /completions, not /chat/completions.")] = (
        False
    )
    disconnect: Annotated[
        float, option("--disconnect", min=0, max=1, help="With --url: share of clients that go away early.")
    ] = 0.0
    key: Annotated[str, option("--api-key", env="API_KEY", help="With --url: sent as a bearer token.")] = ""
    seed: Annotated[int, option("--seed", help="With --url: of what is drawn at random.")] = 0

    def __post_init__(self) -> None:
        if not self.url:
            given = (f.name for f in fields(self) if f.name != "key" and getattr(self, f.name) != f.default)
            if name := next(given, None):
                raise wrong(f"--{name}", "it goes with --url")
        elif not self.url.startswith(("http://", "https://")):
            raise wrong("--url", f"expected http://HOST:PORT or https://..., got {self.url!r}")
        if self.load and self.rate:
            raise wrong("--rate", "the recorded requests of --load have times of their own")
        if self.load and self.text:
            raise wrong("--text", "the recorded requests of --load say themselves what they ask")

    @property
    def paced(self) -> bool:
        """Whether the load is open: requests are sent at given times, not when an earlier one ends."""
        return bool(self.rate or self.load)

    @property
    def bounds(self) -> Bounds:
        endless = not (self.load or self.requests or self.seconds)
        together = self.concurrency or (0 if self.paced else CONCURRENCY)
        return Bounds(self.requests or (REQUESTS if endless else 0), self.seconds, together)

    @property
    def name(self) -> str:
        if self.load:
            return self.load.name
        return f"{self.rate:g} req/s" if self.rate else f"{self.bounds.concurrency} clients"


def measure(options: UrlOptions, model: str, prompts: list[int], answers: list[int], output: str) -> int:
    """Runs the load and prints its summary. Returns 1 where no request succeeded."""
    try:
        import httpx  # noqa: F401
    except ImportError:
        raise RequestError("--url takes the package httpx: pip install 'satchel[conformance]'") from None
    server = LoadTarget(options.url, model, options.key)
    if not model:
        server = LoadTarget(options.url, first_model(server), options.key)
    if options.load:
        requests = iter(recorded(options.load))
    else:
        requests = made_up(LoadShape(prompts, answers, options.rate, options.text), options.seed)
    driven = run(server, with_leavers(requests, options.disconnect, options.seed), options.bounds)
    found = summary(driven)
    write = writer(output, COLUMNS)
    write.row({"url": options.url, "model": server.model, "load": options.name, **found})
    write.end()
    for text, count in found["errors"].items():
        note(f"satchel: {count} x {text}")
    for line in MEANING.splitlines() if output == "md" else ():
        note(f"satchel: {line}")
    return 0 if found["completed"] or found["disconnected"] else 1


def run(server: LoadTarget, requests: Iterator[LoadRequest], bounds: Bounds) -> Driven:
    """Runs the load with a progress line on the terminal."""
    with err().status(f"satchel: {server.url}: {server.model}") as status:
        counted = itertools.count(1)

        def notify(outcome: Outcome) -> None:
            status.update(f"satchel: {server.url}: {server.model}: {next(counted)} answers")

        return asyncio.run(drive(server, requests, bounds, notify))
