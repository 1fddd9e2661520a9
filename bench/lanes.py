"""A pipeline with one step under way and with several (lanes), beside one device: tokens per second of many
streams, and how much of the time the devices computed. `python bench/lanes.py MODEL --devices cuda:0,cuda:1`.

Each row is a process of its own. The streams begin together; tokens are counted from the moment when all of
them answer until the first one ends, so no prompt is in the time. A model of random weights hardly ever ends
an answer early; with another, whose answers end before half of --tokens, the bench says so and gives no row.
(ignore_eos would have the host edit the rows, which is measured by host_rows.py.)
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from satchel import Model
from satchel.runtime.sampling import GREEDY

HEAD = "| devices | lanes | streams | tokens/s | of the first row | computing | steps of a lane |"
LINE = "|---|---:|---:|---:|---:|---:|---:|"


@dataclass(frozen=True)
class Row:
    """computing: seconds of all devices' turns, as a part of the time. rows: mean sequences of a step."""

    devices: str
    lanes: str
    streams: int
    rate: float
    computing: float
    rows: float

    def line(self, first: float) -> str:
        parts = f"{self.rate:,.0f} | {self.rate / first:.2f} | {self.computing:.2f} | {self.rows:.1f}"
        return f"| {self.devices} | {self.lanes} | {self.streams} | {parts} |"


def measure(asked: argparse.Namespace) -> Row:
    count, rng = asked.streams, random.Random(5)
    shares = {"tensor_split": asked.split} if "," in asked.device else {}
    sizes = {"context": asked.prompt + asked.tokens + 16, "slots": count}
    with Model.load(asked.model, device=asked.device, worker="thread", **sizes, **shares) as model:
        scheduler, collector = model.service.scheduler, model.service.stats_collector
        if asked.lanes:
            scheduler.lanes, scheduler.weighs = asked.lanes, False
        for tokens in (8, asked.tokens):  # the first round compiles the plans
            prompts = [[rng.randrange(100, 250) for _ in range(asked.prompt)] for _ in range(count)]
            replies = [model.generate(ids, max_tokens=tokens, sampling=GREEDY) for ids in prompts]
            for reply in replies:
                reply.start()
            while len(scheduler.running) < count or not all(s.generated for s in scheduler.running):
                time.sleep(0.001)
            histogram = collector.histograms["step_seconds"]
            began, before = time.perf_counter(), given(model)
            steps, spent = sum(histogram.counts), histogram.total
            while len(scheduler.running) == count:
                time.sleep(0.001)
            seconds, made = time.perf_counter() - began, given(model) - before
            steps, spent = sum(histogram.counts) - steps, histogram.total - spent
            for reply in replies:
                reply.read()
        if made < count * tokens // 2:
            raise SystemExit(f"an answer ended after about {made // count} of {tokens} tokens")
        lanes = str(asked.lanes or f"auto of {scheduler.lanes}")
        return Row(asked.device, lanes, count, made / seconds, spent / seconds, made / max(1, steps))


def given(model: Model) -> int:
    return model.service.stats().generated_tokens


def in_process(asked: argparse.Namespace, device: str, lanes: int) -> Row:
    words = [
        "--device",
        device,
        "--lanes",
        str(lanes),
        "--streams",
        str(asked.streams),
        "--split",
        asked.split,
    ]
    words += ["--prompt", str(asked.prompt), "--tokens", str(asked.tokens)]
    done = subprocess.run(
        [sys.executable, __file__, str(asked.model), *words], stdout=subprocess.PIPE, text=True, check=True
    )
    return Row(**json.loads(done.stdout))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "--devices", default="cuda:0,cuda:1", help="the stages; the first is measured alone too"
    )
    parser.add_argument("--split", default="1,1", help="shares of the layers")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--no-single", action="store_true", help="the model does not fit the first device")
    parser.add_argument("--device", default="", help="measure this one here, and print its row as JSON")
    parser.add_argument("--lanes", type=int, default=0, help="of --device; 0: as many as pay")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    if asked.device:
        print(json.dumps(asdict(measure(asked))))
        return
    print(f"{HEAD}\n{LINE}", flush=True)
    stages, first = asked.devices.split(","), 0.0
    kinds = [] if asked.no_single else [(stages[0], 0)]
    for device, lanes in (*kinds, (asked.devices, 1), (asked.devices, len(stages)), (asked.devices, 0)):
        row = in_process(asked, device, lanes)
        first = first or row.rate
        print(row.line(first), flush=True)


if __name__ == "__main__":
    main()
