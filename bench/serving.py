"""Load test of Satchel's server, and its speed beside llama.cpp's own llama-server.

python bench/serving.py [--seconds 120] [--clients 64] [--more OPTIONS] [--markdown FILE]
python bench/serving.py --seconds 0 --llama-server PATH [--beside 1 8 32] [--rounds 5]

The load: each client sends a greedy question, reads the stream, and sends the next; some disconnect during
the answer, some send invalid requests. Every stream must equal its question's reference answer.
serving_beside.py describes the comparison. Exit code 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine_rows import Finding
from findings import tell
from serving_beside import beside
from serving_load import Mix, alone, faults, questions, together
from serving_process import MemoryWatch, Process, satchel

from satchel.cli.load.drive import Bounds, Driven, LoadTarget, drive, first_model
from satchel.cli.load.summary import summary
from satchel.store.resolve import default_model

OUTSIDE_MS = 0.2  # milliseconds per streamed token outside the engine
SHORT_AND_LONG = (4, 104)  # tokens of the two answers whose costs are compared
GROWTH = 8 << 20  # bytes by which a server's memory may grow
BACK = 5.0  # seconds within which a server answers again after its engine was killed
LONG = 60.0  # seconds: growth in shorter runs is not judged, because caches still fill


@dataclass(frozen=True, slots=True)
class Run:
    """A server under the load."""

    driven: Driven
    faults: list[str]
    growth: int  # bytes by which its memory has grown at the end

    @property
    def tokens(self) -> int:
        return sum(o.tokens for o in self.driven.outcomes)

    @property
    def rate(self) -> float:
        return self.tokens / self.driven.seconds


def under(process: Process, ready: str, mix: Mix, seconds: float) -> Run:
    """Sends each question alone, then runs all clients together for so long."""
    process.ready(ready)
    server = LoadTarget(process.url)
    server = LoadTarget(process.url, first_model(server))
    asked = questions(mix.seed)
    answers = alone(server, asked)
    with MemoryWatch(process) as watch:
        driven = together(server, asked, mix, seconds)
    return Run(driven, faults(driven.outcomes, answers), watch.growth())


def outside(process: Process, mix: Mix) -> Finding:
    """Cost of a streamed token in the event loop's thread, which does no work of the engine: the difference
    between longer and shorter answers. The rest is the cost of a request.
    """
    server = LoadTarget(process.url, first_model(LoadTarget(process.url)))
    asked, costs, tokens = questions(mix.seed)[0], [], []
    for length in SHORT_AND_LONG:
        body = asked.body | {"max_tokens": length, "ignore_eos": True}
        before = process.loop_seconds()
        driven = asyncio.run(drive(server, iter([replace(asked, body=body)] * mix.clients), Bounds()))
        costs.append(process.loop_seconds() - before)
        tokens.append(sum(o.tokens for o in driven.outcomes))
    each = 1e3 * (costs[1] - costs[0]) / max(1, tokens[1] - tokens[0])
    request = (1e3 * costs[0] - each * tokens[0]) / mix.clients
    text = f"{each:.3f} ms of the event loop a token, {request:.1f} ms a request"
    return Finding("outside the engine", text, f"under {OUTSIDE_MS} ms a token", each < OUTSIDE_MS)


def findings(run: Run) -> Iterator[Finding]:
    """Satchel's rows one by one."""
    outcomes, found = run.driven.outcomes, summary(run.driven)
    refused = sum(o.status == 400 for o in outcomes)
    counts = f"{len(outcomes)} streams, {found['disconnected']} left, {refused} refused as they had to be"
    if run.driven.given_up:
        counts += f", {run.driven.given_up} without an end"
    worst = "; ".join(f"{n} x {text}" for text, n in Counter(run.faults).most_common(3)) or "none"
    whole = not run.faults and not run.driven.given_up
    yield Finding("each stream is its answer", f"{counts}; faults: {worst}", "no fault", whole)
    flat = run.growth <= GROWTH if run.driven.seconds >= LONG else None
    yield Finding("memory at the end", f"{run.growth / 2**20:+.1f} MiB", f"within {GROWTH >> 20} MiB", flat)
    yield Finding("speed", speed(run), "", None)


def killed(process: Process, mix: Mix) -> Finding:
    """Kills the engine's process (SIGKILL) under load: seconds until the next answer, and how the running
    streams end.
    """
    engine, asked = process.engine(), questions(mix.seed)
    row, wanted = "kill -9 of the engine", f"an answer within {BACK:.0f} s, no stream wrong"
    if engine is None:
        return Finding(row, "not measured: the engine is in the server's own process", wanted, None)
    server = LoadTarget(process.url, first_model(LoadTarget(process.url)))
    answers = alone(server, asked)
    back: list[float] = []

    def shoot() -> None:
        os.kill(engine, signal.SIGKILL)
        began = time.perf_counter()
        while not asyncio.run(drive(server, iter(asked[:1]), Bounds())).outcomes[0].whole:
            time.sleep(0.05)
        back.append(time.perf_counter() - began)

    timer = threading.Timer(2.0, shoot)
    timer.start()
    driven = together(server, asked, Mix(mix.clients, leave=0, wrong=0), 4.0)
    timer.join()
    ended = [o for o in driven.outcomes if o.error]
    proper = all(o.error.startswith(("in the stream: ", "HTTP 5")) for o in ended)
    wrong = faults([o for o in driven.outcomes if not o.error], answers)
    text = f"an answer after {back[0]:.1f} s; {len(driven.outcomes)} streams, {len(ended)} with an error"
    return Finding(row, f"{text}, {len(wrong)} wrong", wanted, back[0] < BACK and proper and not wrong)


def speed(run: Run) -> str:
    found = summary(run.driven)
    first, after = found["ttft_ms"], found["inter_token_ms"]
    times = f"first p50 {first['p50']:.0f}, p99 {first['p99']:.0f} ms; " if first else ""
    times += f"next p50 {after['p50']:.1f}, p99 {after['p99']:.1f} ms" if after else ""
    return f"{run.rate:.1f} t/s of {run.driven.most} clients; {times}"


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A server under a crowd of streaming clients.")
    parser.add_argument("--seconds", type=float, default=120.0, help="of the load; 0: none")
    parser.add_argument("--clients", type=int, default=64, help="at once")
    parser.add_argument("--model", type=Path, default=None, help="default: the bundled one")
    parser.add_argument("--more", default="", help="further options of `satchel serve`, in one argument")
    parser.add_argument("--llama-server", type=Path, help="the program of llama.cpp to compare with")
    parser.add_argument("--beside", type=int, nargs="+", default=[1, 8, 32], help="clients of the comparison")
    parser.add_argument("--rounds", type=int, default=5, help="of the comparison")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    parser.add_argument("--json", type=Path, help="write the findings here")
    return parser.parse_args(argv)


def measure(options: argparse.Namespace) -> list[Finding]:
    model, more, found = options.model or Path(default_model()), options.more.split(), list[Finding]()
    mix = Mix(options.clients)
    if options.seconds:
        with satchel(model, options.clients, *more) as process:
            run = under(process, "/readyz", mix, options.seconds)
            found += [*findings(run), outside(process, mix), killed(process, mix)]
    if options.llama_server:
        for one in beside(options.llama_server, model, options.beside, options.rounds, more):
            print(f"{one.row}: {one.measured}", file=sys.stderr)  # the whole takes minutes
            found.append(one)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    found = measure(options)
    return tell(found, options)


if __name__ == "__main__":
    sys.exit(main())
