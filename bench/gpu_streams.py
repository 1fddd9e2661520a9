"""Many streams of one model through the service, and over HTTP: tokens a second while all of them decode.

    python bench/gpu_streams.py MODEL.gguf [--device cuda] [--service 64,128] [--http 128] [--repeats 3]
                                [--step 0]

A child process of bench/gpu.py, whose loop has the same sizes. All streams begin together, with different
prompts; the rate is that of the tokens which come between the last stream's first one and the first stream's
last. Over HTTP the clients are `satchel bench --url`'s, in processes of their own. Prints a JSON list.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from number_lists import numbers
from one_line import errors_in_one_line
from serving_process import Process

from satchel.cli.load.drive import Bounds, LoadTarget, first_model
from satchel.cli.load.processes import MadeUpLoad, processes_for, run_load
from satchel.cli.load.requests import LoadShape
from satchel.errors import RequestError
from satchel.runtime.api.model import Model
from satchel.runtime.engine.generate_request import GenerateRequest
from satchel.runtime.engine.request_handle import RequestHandle

PROMPT, ANSWER = 128, 768  # tokens of a stream: the last one of many begins before the first one ends
ROOM = 128  # tokens of context beside these: a chat's own, and words of more than one token


def steady(streams: Sequence[Sequence[float]]) -> float:
    """Pieces a second while all streams decode. streams: the times of each one's pieces. RequestError where
    there was no such time.
    """
    if not all(streams):
        raise RequestError(f"{sum(not s for s in streams)} of {len(streams)} streams had no token")
    begin, end = max(times[0] for times in streams), min(times[-1] for times in streams)
    if begin >= end:
        raise RequestError(
            f"{len(streams)} streams never decoded together: the first ended before the last began"
        )
    return sum(begin < at <= end for times in streams for at in times) / (end - begin)


class Stream:
    """A request under way, whose tokens are timed when the engine gives them."""

    def __init__(self, handle: RequestHandle) -> None:
        self.handle, self.times = handle, list[float]()
        handle.listen(self.note)

    def note(self) -> None:
        self.times.append(time.perf_counter())

    def ended(self) -> list[float]:
        """The times of the tokens, once all have come."""
        return self.times[: len(list(self.handle))]  # the call behind them is for the end


def through_service(model: Model, count: int, seed: int, answer: int = ANSWER) -> float:
    """Tokens a second of so many streams."""
    rng, streams = np.random.default_rng(seed), list[Stream]()
    for _ in range(count):
        ids = rng.integers(0, model.arch.vocab, PROMPT).tolist()
        streams.append(Stream(model.submit(GenerateRequest(ids, answer))))
    return steady([stream.ended() for stream in streams])


def service_rows(model: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    counts = options.service
    context, step = PROMPT + ANSWER + ROOM, {"batch": options.step} if options.step else {}
    with Model.load(model, device=options.device, slots=max(counts), context=context, **step) as loaded:
        return [
            row("service", n, [through_service(loaded, n, i) for i in range(options.repeats + 1)])
            for n in counts
        ]


def http_rows(model: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    most = max(options.http)
    command = [
        sys.executable,
        "-m",
        "satchel",
        "serve",
        str(model),
        "--port",
        "0",
        "--device",
        options.device,
    ]
    command += ["-np", str(most), "-c", str(PROMPT + ANSWER + ROOM)]
    command += ["-ub", str(options.step)] if options.step else []
    with Process(command) as process:
        process.ready("/readyz")
        server = LoadTarget(process.url, first_model(LoadTarget(process.url)))
        return [
            row("http", n, [over_http(server, n, i) for i in range(options.repeats + 1)])
            for n in options.http
        ]


def over_http(server: LoadTarget, count: int, seed: int) -> float:
    """Tokens a second of so many streaming clients. Each piece counts as the mean number of tokens."""
    load = MadeUpLoad(LoadShape([PROMPT], [ANSWER], whole=True), seed, Bounds(count, 0.0, count))
    outcomes = run_load(server, load, processes_for(count)).outcomes
    if failed := next((o.error for o in outcomes if o.error), ""):
        raise RequestError(f"{server.url}: {failed}")
    rate = steady([o.pieces for o in outcomes])
    return rate * sum(o.tokens for o in outcomes) / sum(len(o.pieces) for o in outcomes)


def row(way: str, streams: int, runs: Sequence[float]) -> dict[str, Any]:
    """The first run is a warm-up: it compiles what so many streams need."""
    timed = list(runs[1:])
    return {"way": way, "streams": streams, "tokens_per_second": statistics.median(timed), "samples": timed}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--service", type=numbers, default=[64, 128])
    parser.add_argument("--http", type=numbers, default=[128])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--step", type=int, default=0)
    options = parser.parse_args()
    found = service_rows(options.model, options) if options.service else []
    found += http_rows(options.model, options) if options.http else []
    print(json.dumps(found))


if __name__ == "__main__":
    with errors_in_one_line():
        main()
