"""One model on one device and on groups of devices (tensor parallelism): speeds, their multiples of the first
device's, and the share of the time that members waited for others.

    python bench/parallel.py MODEL.gguf... [--devices cuda:0,cuda:0+cuda:1] [--tg 128] [--batches 16,64]
                             [--pp 4096] [--repeats 5] [--step 0] [--also NAME=VALUE]
                             [--markdown FILE] [--json FILE]

Each device is a process of its own, one after another, on the same file; random weights in a known model's
shape (bench/make_shape.py) serve as well as real ones. A batch of N decodes 64 tokens of each of N sequences
behind prompts of 128. `waited` is of the member that waited least; others waited for it, too.

--also measures each group once more with variables of the environment: SATCHEL_GROUP_PUSH=1 with products
that begin their sums, SATCHEL_GROUP_SEQUENCE=0 without sequence parallelism, SATCHEL_NCCL=off without NCCL.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path

from number_lists import numbers

from satchel.runtime.api.model import Model
from satchel.runtime.device.group import GroupDevice
from satchel.runtime.tasks.bench import Runner, Test, run_batched

PROMPT_OF_BATCH, ANSWER_OF_BATCH, SPARE = 128, 64, 64
HEAD = ("| model | test | device | t/s | multiple | waited |", "|---|---|---|--:|--:|--:|")


@dataclass(frozen=True, slots=True)
class Row:
    """Speed of one test on one device. waited: a share of the time; None: the device is no group."""

    model: str
    test: str
    device: str
    tokens_per_second: float
    waited: float | None

    def line(self, first: float) -> str:
        """first: the speed of the first device in this test; 0: it was not measured."""
        multiple = f"{self.tokens_per_second / first:.2f}" if first else "-"
        waited = "-" if self.waited is None else f"{100 * self.waited:.0f} %"
        speed = f"{self.tokens_per_second:,.1f}"
        return f"| {self.model} | {self.test} | {self.device} | {speed} | {multiple} | {waited} |"


def waited(model: Model) -> float | None:
    """Seconds so far that the member waited which waited least."""
    device = model.device
    return min(device.group_info().waited) if isinstance(device, GroupDevice) else None


def timed(model: Model, run: Callable[[], tuple[float, float]]) -> tuple[float, float | None]:
    """The speed and the share of the time that was waited. run: gives tokens per second, and its seconds."""
    before = waited(model)
    speed, seconds = run()
    after = waited(model)
    return speed, None if before is None or after is None else (after - before) / seconds


def rows(path: Path, asked: argparse.Namespace) -> Iterator[Row]:
    """All tests on one device."""
    batches, longest = asked.batches, max([*asked.pp, *asked.tg])
    context = max(longest, PROMPT_OF_BATCH + ANSWER_OF_BATCH)
    slots = max([*batches, 1])
    room = max(context, slots * (PROMPT_OF_BATCH + ANSWER_OF_BATCH + SPARE))
    sizes = {"context": context, "slots": slots, "kv_budget": room, "batch": asked.step}
    with Model.load(path, device=asked.device, worker="thread", **sizes) as model:
        runner = Runner(model.engine, model.arch.vocab)
        for test in (*(Test(0, n) for n in asked.tg), *(Test(n, 0) for n in asked.pp)):
            runner.warm_up(test)

            def single(test: Test = test) -> tuple[float, float]:
                found = runner.run(test, asked.repeats, warm_up=False)
                return found.tokens_per_second, sum(test.tokens / speed for speed in found.samples)

            yield Row(path.stem, test.name, asked.device, *timed(model, single))
        for n in batches:
            list(run_batched(runner, [PROMPT_OF_BATCH], [3], [n], 1))

            def batch(n: int = n) -> tuple[float, float]:
                sizes = [PROMPT_OF_BATCH], [ANSWER_OF_BATCH], [n]
                found = next(iter(run_batched(runner, *sizes, asked.repeats, warm_up=False)))
                return float(found.columns()["speed_tg"]), sum(found.t_pp) + sum(found.t_tg)  # type: ignore[arg-type]

            name = f"tg{ANSWER_OF_BATCH} x{n}"
            yield Row(path.stem, name, asked.device, *timed(model, batch))


def measured(path: Path, device: str, words: Sequence[str], also: str = "") -> Iterator[Row]:
    """The rows of one device, from a process of its own; none, and a line on stderr, where it fails. also:
    variables of its environment, NAME=VALUE and spaces between.
    """
    command = [sys.executable, __file__, str(path), "--device", device, *words]
    environment = os.environ | dict(one.split("=", 1) for one in also.split())
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    name = f"{device} {also}".strip()
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(f"{path.name} on {name}: exit {done.returncode}: {last}", file=sys.stderr, flush=True)
    for line in done.stdout.splitlines():
        yield replace(Row(**json.loads(line)), device=name)


def heading() -> str:
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    told = []
    for command in (asked, ["git", "rev-parse", "--short", "HEAD"]):
        try:
            told += subprocess.run(command, capture_output=True, text=True).stdout.strip().splitlines()
        except FileNotFoundError:
            continue
    return f"{'; '.join(told)}, {date.today()}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--devices", default="cuda:0,cuda:0+cuda:1")
    parser.add_argument("--device", default="", help="measure this one here, and print its rows as JSON")
    parser.add_argument("--tg", type=numbers, default=[128])
    parser.add_argument("--batches", type=numbers, default=[16, 64])
    parser.add_argument("--pp", type=numbers, default=[4096])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--step", type=int, default=0, help="largest step in tokens; 0: Satchel's default")
    parser.add_argument(
        "--also", action="append", default=[], help="groups once more with these variables: NAME=VALUE ..."
    )
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    if asked.device:
        for path in asked.models:
            for row in rows(path, asked):
                print(json.dumps(asdict(row)), flush=True)
        return
    words = []
    for name in ("tg", "batches", "pp"):
        words += [f"--{name}", ",".join(map(str, getattr(asked, name)))]
    words += ["--repeats", str(asked.repeats), "--step", str(asked.step)]
    lines, found = [heading(), "", *HEAD], list[Row]()
    print("\n".join(lines), flush=True)
    for path in asked.models:
        first: dict[str, float] = {}
        runs = [
            (d, also) for d in asked.devices.split(",") for also in ("", *(asked.also if "+" in d else ()))
        ]
        for device, also in runs:
            for row in measured(path, device, words, also):
                line = row.line(first.setdefault(row.test, row.tokens_per_second))
                print(line, flush=True)
                lines.append(line)
                found.append(row)
    if asked.markdown:
        asked.markdown.write_text("\n".join([*lines, ""]))
    if asked.json:
        asked.json.write_text(json.dumps({"heading": lines[0], "rows": [asdict(r) for r in found]}, indent=1))


if __name__ == "__main__":
    main()
