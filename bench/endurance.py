"""Soak test of the server, one hour by default: streaming clients, some of which disconnect or send invalid
requests, and two hostile API keys.

python bench/endurance.py [--seconds 3600] [--clients 64] [--hostile 2] [--leave-out ACT,...] [--json FILE]

It reports the latency to the first token and between tokens (p50, p99), streams that differ from their
question's reference answer, and the growth of memory and descriptors of the server and of its engine's
process: the slope of a least squares line through samples taken once a second after the first third. Exit
code 1 where a target is missed. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from endurance_hostile import ACTS, Hostile
from engine_rows import Finding
from findings import tell
from serving_load import GRACE, Mix, crowd, fault, key, questions
from serving_process import Process, Watch, satchel

from satchel.cli.load.drive import Bounds, Driven, LoadTarget, drive, first_model
from satchel.cli.load.requests import LoadRequest
from satchel.cli.load.stream import Outcome
from satchel.cli.load.summary import summary
from satchel.store.resolve import default_model

LEAVE, WRONG = 0.05, 0.01  # shares of clients that disconnect, and of invalid requests
WARM = 1 / 3  # share of the run during which caches fill
LONG = 600.0  # seconds: slopes of shorter runs are not judged
MEMORY = 32 << 20  # bytes per hour by which a process may grow
DESCRIPTORS = 4.0  # descriptors per hour by which a process may grow
EVERY = 1.0  # seconds between samples


@dataclass
class Samples:
    """Samples of one process."""

    name: str
    pid: int
    at: list[float] = field(default_factory=list)  # seconds since the start
    memory: list[int] = field(default_factory=list)  # bytes
    descriptors: list[int] = field(default_factory=list)  # open file descriptors

    def take(self, now: float) -> None:
        """Takes a sample; nothing where the process is gone."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
            count = sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())
        except OSError:
            return
        self.at.append(now)
        self.memory.append(pages * os.sysconf("SC_PAGE_SIZE"))
        self.descriptors.append(count)


def slope(at: Sequence[float], values: Sequence[float], warm: float = WARM) -> float:
    """Units per hour: the slope of the least squares line through the samples after the first share `warm` of
    the time; 0 for fewer than three.
    """
    if not at:
        return 0.0
    begin = at[0] + warm * (at[-1] - at[0])
    x, y = (np.array(column, float) for column in (at, values))
    x, y = x[np.array(at) >= begin], y[np.array(at) >= begin]
    if len(x) < 3:
        return 0.0
    x = x - x.mean()
    return float(3600 * (x @ (y - y.mean())) / (x @ x))


class ProcessWatch(Watch):
    """Samples the server and its engine's process while the block runs. An engine that was begun anew is
    another row.
    """

    def __init__(self, process: Process) -> None:
        super().__init__(EVERY)
        self.process, self.start = process, time.monotonic()
        self.found: dict[int, Samples] = {}

    def sample(self) -> None:
        engine, server = self.process.engine(), self.process.child.pid
        for name, pid in (("server", server), ("engine", engine)):
            if pid is not None:
                self.found.setdefault(pid, Samples(name, pid)).take(time.monotonic() - self.start)


@dataclass(frozen=True, slots=True)
class Answer:
    """The reference answer of a question: the one that the server gives when nothing else runs."""

    text: str
    tokens: int


def alone(server: LoadTarget, asked: Sequence[LoadRequest]) -> dict[str, Answer]:
    driven = asyncio.run(drive(server, iter(asked), Bounds(concurrency=1)))
    if bad := next((o.error for o in driven.outcomes if o.error), None):
        raise RuntimeError(f"a question that was asked alone: {bad}")
    return {key(o.request): Answer("".join(o.text), o.tokens) for o in driven.outcomes}


@dataclass
class Compared:
    """The comparison of streams with their reference answers."""

    streams: int = 0
    left: int = 0
    refused: int = 0
    busy: int = 0  # refused because the server was full
    lost: int = 0  # tokens that complete streams lack, by the server's own count
    doubled: int = 0  # tokens that they have too many
    other: Counter[str] = field(default_factory=Counter)  # differences of text and other faults

    def add(self, outcome: Outcome, answer: Answer) -> None:
        self.streams += 1
        if outcome.refused:
            self.busy += 1
            return
        self.left += outcome.left
        self.refused += outcome.status == 400
        if outcome.whole:
            self.lost += max(0, answer.tokens - outcome.tokens)
            self.doubled += max(0, outcome.tokens - answer.tokens)
        if wrong := fault(outcome, answer.text):
            self.other[wrong] += 1


@contextmanager
def beside(clients: Sequence[Hostile]) -> Iterator[None]:
    """Runs the hostile clients while the block runs."""
    threads = [threading.Thread(target=client.run, daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for client in clients:
            client.stop.set()
        for thread in threads:
            thread.join(60)


@dataclass(frozen=True, slots=True)
class Run:
    driven: Driven
    compared: Compared
    hostile: Sequence[Hostile]
    samples: Sequence[Samples]
    alive: bool


def endure(process: Process, keys: Sequence[str], options: argparse.Namespace) -> Run:
    """The whole soak test. keys: those of the honest clients, then one for each hostile client."""
    mix, acts = Mix(options.clients, LEAVE, WRONG), tuple(a for a in ACTS if a not in options.leave_out)
    server = LoadTarget(process.url, first_model(LoadTarget(process.url, key=keys[0])), keys[0])
    asked = questions(mix.seed)
    answers = alone(server, asked)
    compared = Compared()

    def notify(outcome: Outcome) -> None:
        compared.add(outcome, answers[key(outcome.request)])

    hostile = [Hostile(process.url, own, seed, acts) for seed, own in enumerate(keys[1:])]
    bounds = Bounds(seconds=options.seconds, concurrency=mix.clients, grace=GRACE)
    with ProcessWatch(process) as watch, beside(hostile):
        driven = asyncio.run(drive(server, crowd(asked, mix), bounds, notify))
    after = alone(server, asked)  # it still answers, and as before
    return Run(driven, compared, hostile, list(watch.found.values()), after == answers)


def findings(run: Run, seconds: float) -> Iterator[Finding]:
    compared, found = run.compared, summary(run.driven)
    for name, what in (("ttft_ms", "first token"), ("inter_token_ms", "between tokens")):
        times = found[name]
        text = (
            f"p50 {times['p50']:.1f}, p99 {times['p99']:.1f}, most {times['max']:.0f} ms"
            if times
            else "none came"
        )
        yield Finding(what, text, "", None)
    rate = found["tokens_per_second"]
    yield Finding("speed", f"{rate:.1f} t/s of {run.driven.most} clients at once", "", None)
    worst = "; ".join(f"{n} x {text}" for text, n in compared.other.most_common(3)) or "none"
    counts = f"{compared.streams} streams, {compared.left} left, {compared.refused} refused as they had to be"
    yield Finding("streams", f"{counts}; faults: {worst}", "no fault", not compared.other)
    text = f"{compared.lost} lost, {compared.doubled} doubled"
    yield Finding("tokens", text, "none", not compared.lost and not compared.doubled)
    late = compared.busy + run.driven.given_up
    text = f"{compared.busy} refused for want of room, {run.driven.given_up} without an end"
    yield Finding("turned away", text, "none", not late)
    yield Finding("afterwards", "as before" if run.alive else "other answers", "as before", run.alive)
    for client in run.hostile:
        done = ", ".join(f"{n} {act}" for act, n in sorted(client.done.items())) or "nothing"
        answers = ", ".join(f"{n} x {status or 'cut off'}" for status, n in sorted(client.answers.items()))
        yield Finding("hostile key", f"{done}; answered {answers or 'never'}", "", None)
    yield from grown(run.samples, seconds)


def grown(samples: Sequence[Samples], seconds: float) -> Iterator[Finding]:
    """Slopes of each process; those of a short run are printed and not judged."""
    judged = seconds >= LONG
    engines = sum(one.name == "engine" for one in samples)
    yield Finding("engine processes", str(engines), "at most 1", engines <= 1)
    for one in samples:
        if len(one.at) < 3:
            continue
        memory, count = slope(one.at, one.memory), slope(one.at, one.descriptors)
        text = f"{one.memory[-1] / 2**20:.0f} MiB, {memory / 2**20:+.1f} MiB an hour"
        met = memory <= MEMORY if judged else None
        yield Finding(f"memory of the {one.name}", text, f"at most {MEMORY >> 20} MiB an hour", met)
        text = f"{one.descriptors[-1]}, {count:+.1f} an hour, most {max(one.descriptors)}"
        met = count <= DESCRIPTORS if judged else None
        yield Finding(f"descriptors of the {one.name}", text, f"at most {DESCRIPTORS:g} an hour", met)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=3600.0, help="of load")
    parser.add_argument("--clients", type=int, default=64, help="honest ones at once")
    parser.add_argument("--hostile", type=int, default=2, help="keys that mean harm, each with one client")
    names: Callable[[str], list[str]] = lambda text: [name for name in text.split(",") if name]  # noqa: E731
    parser.add_argument("--leave-out", type=names, default=[], help=f"of what they do: {', '.join(ACTS)}")
    parser.add_argument("--model", type=Path, default=None, help="default: the bundled one")
    parser.add_argument("--more", default="", help="further options of `satchel serve`, in one argument")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    parser.add_argument("--json", type=Path, help="write the findings here")
    options = parser.parse_args(argv)
    if unknown := set(options.leave_out) - set(ACTS):
        parser.error(f"--leave-out: no {', '.join(unknown)}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    keys = [secrets.token_hex(16) for _ in range(1 + options.hostile)]
    more = [part for one in keys for part in ("--api-key", one)]
    with ExitStack() as stack:
        model = options.model or Path(default_model())
        process = stack.enter_context(satchel(model, options.clients, *more, *options.more.split()))
        process.ready("/readyz")
        run = endure(process, keys, options)
    return tell(list(findings(run, options.seconds)), options)


if __name__ == "__main__":
    sys.exit(main())
