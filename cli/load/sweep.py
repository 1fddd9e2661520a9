"""The sweep over a server: a row for each number of clients that ask again as soon as they have an answer,
then one of requests that come at random, at a share of the highest rate of the rows before.

No two rows ask the same prompts, so none finds its prompts in a cache. Before a row of clients each of them
asks once for a short answer, which is not counted: the server compiles and allocates what so many need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from satchel.cli.console import note
from satchel.cli.load.drive import Bounds, Driven
from satchel.cli.load.processes import MadeUpLoad
from satchel.cli.load.requests import LoadShape
from satchel.cli.load.summary import steady_rate

SHARE = 0.8  # of the highest rate, at which requests come at random
LEAST, EACH = 32, 4  # requests of a row: this many, and so many for each client
SHORT = 4  # tokens of an answer before the row
WARM, RANDOM = 1 << 20, 1 << 21  # added to the seed of a row, for requests of their own

Run = Callable[[MadeUpLoad, int], Driven]  # runs a load of at most so many clients


@dataclass(frozen=True, slots=True)
class LoadRow:
    """A row."""

    name: str
    bounds: Bounds
    rate: float = 0.0  # mean arrivals per second; 0: clients ask when they have their answer


def sweep(
    run: Run,
    shape: LoadShape,
    clients: Sequence[int],
    limits: Bounds,
    share: float,
    seed: int,
    warm_up: bool = True,
) -> Iterator[tuple[LoadRow, Driven]]:
    """The rows with their results. limits: of each row; without any a row has LEAST requests or EACH for each
    client. share: of the highest rate, for the last row; 0: no such row, and none where nothing was answered.
    """
    best, at = 0.0, 0
    for number, count in enumerate(clients):
        row = LoadRow("1 client" if count == 1 else f"{count} clients", bounded(limits, count))
        if warm_up:
            short = replace(shape, answers=[min(SHORT, n) for n in shape.answers])
            once = Bounds(requests=count, concurrency=count)
            run(MadeUpLoad(short, seed + number + WARM, once), count)
        driven = run(MadeUpLoad(shape, seed + number, row.bounds), count)
        if (rate := steady_rate(driven.outcomes)) > best:
            best, at = rate, count
        yield row, driven
    if share and best:
        rate = share * best
        note(f"satchel: at most {best:.2f} req/s, of {at} at once; requests come at {share:.0%} of that")
        row = LoadRow(f"{rate:.3g} req/s", replace(bounded(limits, max(clients)), concurrency=0), rate)
        yield row, run(MadeUpLoad(replace(shape, rate=rate), seed + RANDOM, row.bounds), max(clients))


def bounded(limits: Bounds, clients: int) -> Bounds:
    """The bounds of a row."""
    own = 0 if limits.requests or limits.seconds else max(LEAST, EACH * clients)
    return Bounds(limits.requests or own, limits.seconds, clients)
