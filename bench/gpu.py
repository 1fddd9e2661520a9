"""Satchel on a GPU, and llama.cpp beside it: one table of speeds and ratios.

    python bench/gpu.py MODEL.gguf... [--device cuda] [--llama-bench PATH] [--llama-batched-bench PATH]
                        [--pp 512,4096] [--tg 128] [--depths 0,4096,16384] [--batches 1,4,16,64,128]
                        [--service 64,128] [--http 128]
                        [--repeats 5] [--step 0] [--precision exact] [--capability 8.0]
                        [--markdown FILE] [--json FILE]

Each runtime is a process of its own, one after another, on the same files. Random weights in a known model's
shape (bench/make_shape.py) serve as well as real ones. A second table has many streams through Satchel's
service and over HTTP (gpu_streams.py) beside the loop of `satchel bench` with the same sizes; 0: none.
Exit code 1 where a row of Satchel's could not be measured.
--capability: the GPU passes for one of this compute capability, for which the library must have images
(SATCHEL_CUDA_LOWERED); llama.cpp has the whole card.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from number_lists import numbers

PROMPT_OF_BATCH, ANSWER_OF_BATCH = 128, 64
PROMPT_OF_STREAM, ANSWER_OF_STREAM = 128, 768  # as in gpu_streams.py
DEPTH_ANSWER = 32
NOTHING = "-"
STREAM_HEAD = (
    "",
    "| model | streams | bench's loop, t/s | service, t/s | ratio | HTTP, t/s | ratio |",
    "|---|--:|--:|--:|--:|--:|--:|",
)
FRAME = re.compile(r"\(.*\+0x[0-9a-f]+\)\s*\[|^\[New LWP|^#\d+ ")
STREAMS = Path(__file__).with_name("gpu_streams.py")


@dataclass(frozen=True, slots=True)
class Runtimes:
    """The runtimes to measure."""

    device: str
    bench: str  # path of llama-bench; "": not measured
    batched: str  # path of llama-batched-bench; "": not measured
    repeats: int
    step: int  # the largest step in tokens; 0: Satchel's default
    precision: str  # Satchel's


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second of one test; 0: not measured."""

    model: str
    test: str
    ours: float
    theirs: float

    @property
    def row(self) -> str:
        ratio = f"{self.ours / self.theirs:.2f}" if self.theirs and self.ours else NOTHING
        theirs = f"{self.theirs:,.0f}" if self.theirs else NOTHING
        return f"| {self.model} | {self.test} | {self.ours:,.0f} | {theirs} | {ratio} |"


@dataclass(frozen=True, slots=True)
class StreamSpeed:
    """Tokens per second of so many sequences that decode at once; 0: not measured."""

    model: str
    streams: int
    loop: float  # of `satchel bench`
    service: float
    http: float

    @property
    def row(self) -> str:
        def cells(speed: float) -> str:
            ratio = f"{speed / self.loop:.2f}" if speed and self.loop else NOTHING
            return f"{speed:,.0f} | {ratio}" if speed else f"{NOTHING} | {ratio}"

        loop = f"{self.loop:,.0f}" if self.loop else NOTHING
        return f"| {self.model} | {self.streams} | {loop} | {cells(self.service)} | {cells(self.http)} |"


def answer_of(command: Sequence[str], what: str) -> Any:
    """The JSON that a program prints; None, and a line on stderr, where it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        try:
            return json.loads(done.stdout)
        except json.JSONDecodeError:
            return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    print(f"{what}: exit {done.returncode}: {reason_of(done.stderr)}", file=sys.stderr, flush=True)
    return None


def reason_of(stderr: str) -> str:
    """The last line that is no frame of a backtrace, as a program prints them behind a failed assertion."""
    lines = [line for line in stderr.strip().splitlines() if not FRAME.search(line)]
    return lines[-1] if lines else "no reason given"


def ours(model: Path, runtimes: Runtimes, *words: str) -> Any:
    own = f"-m satchel bench -dev {runtimes.device} -o json -r {runtimes.repeats}"
    step = f"--precision {runtimes.precision} -b {runtimes.step} -ub {runtimes.step} -m"
    command = [sys.executable, *own.split(), *step.split(), str(model), *words]
    return answer_of(command, f"satchel on {model.name}")


def theirs(program: str, model: Path, *words: str) -> Any:
    if not program:
        return None
    return answer_of(
        [program, "-m", str(model), "-ngl", "99", "-fa", "1", *words], f"{program} on {model.name}"
    )


def single(
    model: Path, runtimes: Runtimes, prompts: Sequence[int], answers: Sequence[int], depth: int
) -> Iterator[Speed]:
    """Prompt and decoding speeds of one sequence at this depth."""
    if not prompts and not answers:
        return
    words = [
        "-p",
        ",".join(map(str, prompts)) or "0",
        "-n",
        ",".join(map(str, answers)) or "0",
        "-d",
        str(depth),
    ]
    mine = ours(model, runtimes, *words) or []
    peer = theirs(runtimes.bench, model, *words, "-r", str(runtimes.repeats), "-o", "json") or []
    found = {row["test"]: row["tokens_per_second"] for row in mine}
    known = {(row["n_prompt"], row["n_gen"]): row["avg_ts"] for row in peer}
    behind = f" @ d{depth}" if depth else ""
    for n in prompts:
        yield Speed(model.stem, f"pp{n}{behind}", found.get(f"pp{n}{behind}", 0), known.get((n, 0), 0))
    for n in answers:
        yield Speed(model.stem, f"tg{n}{behind}", found.get(f"tg{n}{behind}", 0), known.get((0, n), 0))


def batched(model: Path, runtimes: Runtimes, batches: Sequence[int]) -> Iterator[Speed]:
    """Decoding speeds of several sequences at once."""
    words = ["-npp", str(PROMPT_OF_BATCH), "-ntg", str(ANSWER_OF_BATCH), "-npl", ",".join(map(str, batches))]
    context = (PROMPT_OF_BATCH + ANSWER_OF_BATCH) * max(batches)
    mine = ours(model, runtimes, *words) or []
    peer = theirs(runtimes.batched, model, *words, "-c", str(context), "--output-format", "jsonl") or []
    found = {row["pl"]: row["speed_tg"] for row in mine}
    known = {row["pl"]: row["speed_tg"] for row in peer}
    for n in batches:
        yield Speed(model.stem, f"tg{ANSWER_OF_BATCH} x{n}", found.get(n, 0), known.get(n, 0))


def streamed(
    model: Path, runtimes: Runtimes, service: Sequence[int], http: Sequence[int]
) -> Iterator[StreamSpeed]:
    """Speeds of many streams through the service and over HTTP, beside the bench's loop. Where one of these
    fails, the others are measured all the same.
    """
    how = ["--device", runtimes.device, "--repeats", str(runtimes.repeats), "--step", str(runtimes.step)]
    known = dict[tuple[str, int], float]()
    for way, other, asked in (("service", "http", service), ("http", "service", http)):
        if asked:
            command = [sys.executable, str(STREAMS), str(model), *how, f"--{other}", "0"]
            command += [f"--{way}", ",".join(map(str, asked))]
            rows = answer_of(command, f"streams of {model.name} by {way}") or []
            known |= {(way, row["streams"]): row["tokens_per_second"] for row in rows}
    counts = sorted({*service, *http})
    words = ["-npp", str(PROMPT_OF_STREAM), "-ntg", str(ANSWER_OF_STREAM), "-npl", ",".join(map(str, counts))]
    loop = {row["pl"]: row["speed_tg"] for row in ours(model, runtimes, *words) or []}
    for n in counts:
        yield StreamSpeed(
            model.stem, n, loop.get(n, 0), known.get(("service", n), 0), known.get(("http", n), 0)
        )


def heading(runtimes: Runtimes) -> str:
    """Device, driver and commit, as far as they are known."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    told = []
    for command in (asked, ["git", "rev-parse", "--short", "HEAD"]):
        try:
            told.append(subprocess.run(command, capture_output=True, text=True).stdout.strip())
        except FileNotFoundError:
            continue
    if capability := os.environ.get("SATCHEL_CUDA_CAPABILITY"):
        told.append(f"as one of compute capability {capability}")
    return f"{runtimes.device}: {', '.join(filter(None, told))}, {date.today()}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--llama-bench", default="")
    parser.add_argument("--llama-batched-bench", default="")
    parser.add_argument("--pp", type=numbers, default=[512, 4096])
    parser.add_argument("--tg", type=numbers, default=[128])
    parser.add_argument("--depths", type=numbers, default=[4096, 16384])
    parser.add_argument("--batches", type=numbers, default=[1, 4, 16, 64, 128])
    parser.add_argument("--service", type=numbers, default=[64, 128])
    parser.add_argument("--http", type=numbers, default=[128])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--step", type=int, default=0)
    parser.add_argument("--precision", default="exact", choices=("exact", "fast"), help="of Satchel")
    parser.add_argument("--capability", default="", metavar="8.0")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.capability:
        os.environ["SATCHEL_CUDA_CAPABILITY"] = asked.capability  # children inherit it
    runtimes = Runtimes(
        asked.device, asked.llama_bench, asked.llama_batched_bench, asked.repeats, asked.step, asked.precision
    )
    head = [heading(runtimes), "", "| model | test | satchel | llama.cpp | ratio |", "|---|---|--:|--:|--:|"]
    print("\n".join(head), flush=True)
    found: list[Speed] = []
    for model in asked.models:
        for speed in rows_of(model, runtimes, asked):
            print(speed.row, flush=True)
            found.append(speed)
    lines, streams = [*head, *(speed.row for speed in found)], list[StreamSpeed]()
    if asked.service or asked.http:
        print("\n".join(STREAM_HEAD), flush=True)
        for model in asked.models:
            for one in streamed(model, runtimes, asked.service, asked.http):
                print(one.row, flush=True)
                streams.append(one)
        lines += [*STREAM_HEAD, *(one.row for one in streams)]
    if asked.markdown:
        asked.markdown.write_text("\n".join([*lines, ""]))
    if asked.json:
        rows = [{"model": s.model, "test": s.test, "satchel": s.ours, "llama.cpp": s.theirs} for s in found]
        more = [asdict(one) for one in streams]
        asked.json.write_text(json.dumps({"heading": head[0], "rows": rows, "streams": more}, indent=1))
    missing = [f"{s.test} of {s.model}" for s in found if not s.ours]
    missing += [f"{one.streams} streams of {one.model}" for one in streams if not whole(one, asked)]
    if missing:
        sys.exit(f"gpu: not measured, for the reasons above: {', '.join(missing)}")


def whole(one: StreamSpeed, asked: argparse.Namespace) -> bool:
    """Whether all was measured that was asked for of so many streams."""
    service, http = one.streams in asked.service, one.streams in asked.http
    return bool(one.loop and (one.service or not service) and (one.http or not http))


def rows_of(model: Path, runtimes: Runtimes, asked: argparse.Namespace) -> Iterator[Speed]:
    yield from single(model, runtimes, asked.pp, asked.tg, 0)
    for depth in asked.depths:
        yield from single(model, runtimes, [], [DEPTH_ANSWER], depth)
    if asked.batches:
        yield from batched(model, runtimes, asked.batches)


if __name__ == "__main__":
    main()
