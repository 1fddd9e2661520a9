"""`satchel bench --url`: its options and its rows.

Without --rate and --load the rows are a sweep (sweep.py): so many clients at once, then random arrivals.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

from satchel.cli.console import err, note
from satchel.cli.groups import option, wrong
from satchel.cli.load.drive import Bounds, Driven, LoadTarget, drive
from satchel.cli.load.processes import MadeUpLoad, processes_for, run_load
from satchel.cli.load.reach import reached
from satchel.cli.load.requests import LoadRequest, LoadShape, recorded, with_leavers
from satchel.cli.load.stream import Outcome
from satchel.cli.load.summary import COLUMNS, summary
from satchel.cli.load.sweep import SHARE, LoadRow, sweep
from satchel.cli.tables import writer
from satchel.errors import RequestError

CLIENTS = (1, 16, 64)  # at once, row by row
REQUESTS = 64  # of a row whose requests have times of their own
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
        str, option("--concurrency", help="With --url: clients at once, a row each. Comma-separated.")
    ] = ""
    arrivals: Annotated[
        float,
        option(
            "--arrivals",
            min=0,
            max=1,
            help="With --url: a last row at random, this share of the best rate; 0: none.",
        ),
    ] = SHARE
    requests: Annotated[int, option("--requests", min=0, help="With --url: end a row after so many.")] = 0
    seconds: Annotated[
        float, option("--seconds", min=0, help="With --url: begin none of a row after so long.")
    ] = 0.0
    load: Annotated[
        Path | None,
        option("--load", metavar="FILE.jsonl", help="With --url: recorded requests."),
    ] = None
    text: Annotated[bool, option("--text", help="With --url: ask /completions, not /chat/completions.")] = (
        False
    )
    ignore_eos: Annotated[
        bool, option("--ignore-eos", help="With --url: ask for answers of full length.")
    ] = False
    disconnect: Annotated[
        float, option("--disconnect", min=0, max=1, help="With --url: share of clients that go away early.")
    ] = 0.0
    key: Annotated[str, option("--api-key", env="API_KEY", help="With --url: sent as a bearer token.")] = ""
    seed: Annotated[int, option("--seed", help="With --url: of what is drawn at random.")] = 0

    def __post_init__(self) -> None:
        if not self.url:
            given = (f.name for f in fields(self) if f.name != "key" and getattr(self, f.name) != f.default)
            if name := next(given, None):
                raise wrong(f"--{name.replace('_', '-')}", "it goes with --url")
        elif not self.url.startswith(("http://", "https://")):
            raise wrong("--url", f"expected http://HOST:PORT or https://..., got {self.url!r}")
        if self.load and self.rate:
            raise wrong("--rate", "the recorded requests of --load have times of their own")
        for name, asked in (("--text", self.text), ("--ignore-eos", self.ignore_eos)):
            if self.load and asked:
                raise wrong(name, "the recorded requests of --load say themselves what they ask")
        if self.url and len(self.clients) > 1 and self.paced:
            raise wrong("--concurrency", "expected one number with --rate or --load")

    @property
    def paced(self) -> bool:
        """Whether the load is open: requests are sent at given times, not when an earlier one ends."""
        return bool(self.rate or self.load)

    @property
    def clients(self) -> tuple[int, ...]:
        """Numbers of clients; of a paced load the most at once, 0 for any number."""
        if not self.concurrency:
            return (0,) if self.paced else CLIENTS
        try:
            found = tuple(int(word) for word in self.concurrency.split(","))
        except ValueError:
            text = f"expected comma-separated integers, got {self.concurrency!r}"
            raise wrong("--concurrency", text) from None
        if min(found) < 1:
            raise wrong("--concurrency", f"expected 1 or more, got {min(found)}")
        return found

    @property
    def own(self) -> LoadRow:
        """The one row of a paced load."""
        assert self.paced
        name = self.load.name if self.load else f"{self.rate:g} req/s"
        endless = not (self.load or self.requests or self.seconds)
        bounds = Bounds(self.requests or (REQUESTS if endless else 0), self.seconds, self.clients[0])
        return LoadRow(name, bounds, self.rate)


def measure(
    options: UrlOptions,
    model: str,
    prompts: list[int],
    answers: list[int],
    output: str,
    warm_up: bool = True,
) -> int:
    """Runs the loads and prints a row for each. Returns 1 where no request succeeded."""
    try:
        import httpx  # noqa: F401
    except ImportError:
        raise RequestError("--url takes the package httpx: pip install 'satchel[conformance]'") from None
    shape = LoadShape(prompts, answers, options.rate, options.text, options.ignore_eos)
    records = recorded(options.load) if options.load else []
    server = reached(LoadTarget(options.url, model, options.key), shape, ask=not records)
    write, answered = writer(output, COLUMNS), False
    for load, driven in rows(options, server, shape, records, warm_up):
        found = summary(driven)
        clients, rate = load.bounds.concurrency, load.rate
        write.row({"url": options.url, "model": server.model, "load": load.name, "clients": clients,
                   "rate": rate, **found})  # fmt: skip
        for text, count in found["errors"].items():
            note(f"satchel: {load.name}: {count} x {text}")
        answered = answered or bool(found["completed"] or found["disconnected"])
    write.end()
    for line in MEANING.splitlines() if output == "md" else ():
        note(f"satchel: {line}")
    return 0 if answered else 1


def rows(
    options: UrlOptions, server: LoadTarget, shape: LoadShape, records: list[LoadRequest], warm_up: bool
) -> Iterator[tuple[LoadRow, Driven]]:
    """Each load with its result."""
    if records:
        requests = with_leavers(iter(records), options.disconnect, options.seed)
        with progress(server) as notify:
            yield options.own, asyncio.run(drive(server, requests, options.own.bounds, notify))
        return

    def run(load: MadeUpLoad, clients: int) -> Driven:
        with progress(server) as notify:
            load = replace(load, leave=options.disconnect)
            return run_load(server, load, processes_for(clients), notify)

    if options.paced:
        bounds = options.own.bounds
        yield options.own, run(MadeUpLoad(shape, options.seed, bounds), bounds.concurrency)
        return
    limits = Bounds(options.requests, options.seconds)
    yield from sweep(run, shape, options.clients, limits, options.arrivals, options.seed, warm_up)


@contextmanager
def progress(server: LoadTarget) -> Iterator[Callable[[Outcome], None]]:
    """A progress line on the terminal; gives what counts an answer."""
    with err().status(f"satchel: {server.url}: {server.model}") as status:
        counted = itertools.count(1)

        def notify(outcome: Outcome) -> None:
            status.update(f"satchel: {server.url}: {server.model}: {next(counted)} answers")

        yield notify
