"""A load from several processes: one reads some ten thousand pieces of answers a second, and a fast server
sends more to many clients.

Each process takes an equal part of the clients, of the requests and of the rate of arrivals: those at random
of several sources are at random too. The outcomes' clock is the machine's, so they can be joined.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from multiprocessing.synchronize import Barrier

from satchel.cli.load.drive import Bounds, Driven, LoadTarget, drive
from satchel.cli.load.requests import LoadShape, made_up, with_leavers
from satchel.cli.load.stream import Outcome

CLIENTS = 16  # of a process
PATIENCE = 120.0  # seconds within which all processes must have begun
SEEDS = 1 << 24  # from one process to the next


@dataclass(frozen=True, slots=True)
class MadeUpLoad:
    """A load of random requests."""

    shape: LoadShape
    seed: int
    bounds: Bounds
    leave: float = 0.0  # share of the clients that leave


def processes_for(clients: int) -> int:
    """How many processes such a load takes: half of the machine at most, which may be the server's too."""
    return max(1, min(clients // CLIENTS, (os.cpu_count() or 1) // 2))


def parts_of(load: MadeUpLoad, count: int) -> list[MadeUpLoad]:
    """The load of each process; no process has a bound of 0, which would be none."""

    def share(whole: int, number: int) -> int:
        return whole // count + (number < whole % count)

    bounds = load.bounds
    count = min([count, *(n for n in (bounds.requests, bounds.concurrency) if n)])
    shape = replace(load.shape, rate=load.shape.rate / count)
    return [
        replace(
            load,
            shape=shape,
            seed=load.seed + number * SEEDS,
            bounds=replace(
                bounds,
                requests=share(bounds.requests, number),
                concurrency=share(bounds.concurrency, number),
            ),
        )
        for number in range(count)
    ]


def run_load(
    server: LoadTarget, load: MadeUpLoad, processes: int = 1, notify: Callable[[Outcome], None] | None = None
) -> Driven:
    """Runs a load. notify: called with each outcome, where one process runs it."""
    parts = parts_of(load, processes)
    if len(parts) == 1:
        requests = with_leavers(made_up(load.shape, load.seed), load.leave, load.seed)
        return asyncio.run(drive(server, requests, load.bounds, notify))
    # A new process imports what it needs: a forked one would have this one's locks.
    context = multiprocessing.get_context("spawn")
    begun = context.Barrier(len(parts))
    with ProcessPoolExecutor(len(parts), context, _begin, (begun,)) as pool:
        return joined(list(pool.map(run_load, repeat(server), parts)))


def joined(parts: list[Driven]) -> Driven:
    """The result of all parts."""
    outcomes = sorted((o for part in parts for o in part.outcomes), key=lambda o: o.sent)
    ends = [o.ended for o in outcomes]
    seconds = max(ends) - min(o.sent for o in outcomes) if outcomes else max(p.seconds for p in parts)
    return Driven(outcomes, seconds, sum(p.most for p in parts), sum(p.given_up for p in parts))


def _begin(begun: Barrier) -> None:
    """Imports the client in a process of the pool, and waits until all have."""
    import httpx  # noqa: F401

    begun.wait(PATIENCE)
