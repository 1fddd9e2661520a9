"""What the verification of draft tokens costs: a step of one sequence with N draft tokens beside a step that
makes one token.

    python bench/gpu_drafts.py MODEL.gguf [--device cuda] [--drafts 1,2,3,4,7,8,15,16] [--depths 128]
                               [--steps 64] [--repeats 5] [--json FILE]

A step with N draft tokens computes N + 1 rows of one slot and samples after each. Two times are compared with
those of a step without: that of the device alone (the same step, launched back to back) and that of the whole
step. Steps without draft tokens overlap, as in a service. Those with draft tokens do not, since the next
draft depends on what was accepted. Here none is: each step ends with a rewind to where it began. Prints a
table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from number_lists import numbers
from one_line import errors_in_one_line

from satchel.runtime.api.model import Model
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.sampling import GREEDY
from satchel.runtime.tasks.bench import STEPS_ALONE, WARM_UP, Runner, decode

HEAD = (
    "| depth | draft tokens | device, us | ratio | step, us | ratio |",
    "|--:|--:|--:|--:|--:|--:|",
)


@dataclass(frozen=True, slots=True)
class DraftCost:
    """Seconds of a step with `drafts` draft tokens behind `depth` tokens."""

    depth: int
    drafts: int
    device: float  # of the device alone
    step: float  # with the host's part

    def row(self, single: DraftCost) -> str:
        """A row of the table. single: the step without draft tokens at this depth."""
        cells = [f"{self.device * 1e6:,.0f}", f"{self.device / single.device:.2f}"]
        cells += [f"{self.step * 1e6:,.0f}", f"{self.step / single.step:.2f}"]
        return f"| {self.depth} | {self.drafts} | {' | '.join(cells)} |"


class DraftRunner:
    """Steps of slot 0 with draft tokens, which a rewind takes back."""

    def __init__(self, runner: Runner, steps: int, repeats: int) -> None:
        self.runner, self.engine, self.steps, self.repeats = runner, runner.engine, steps, repeats

    def verify(self, drafts: int) -> None:
        """One step with so many draft tokens, none of which is accepted."""
        length = self.engine.length(0)
        ids = self.runner.random(drafts + 1)
        self.engine.step([BatchEntry(0, ids, GREEDY, samples=drafts + 1, speculated=drafts > 0)])
        self.engine.rewind(0, length)

    def _device(self, drafts: int) -> float:
        """Seconds of the device: of the program that the last step filled, launched back to back."""
        program, out = self.engine.program(drafts + 1, drafts + 1), np.empty(drafts + 1, np.int32)
        started = time.perf_counter()
        for _ in range(STEPS_ALONE):
            program.run()
        program.read(out)
        return (time.perf_counter() - started) / STEPS_ALONE

    def _step(self, drafts: int, depth: int) -> float:
        """Seconds of a step: of the loop of a service without draft tokens, of single steps with them."""
        started = time.perf_counter()
        if drafts:
            for _ in range(self.steps):
                self.verify(drafts)
        else:
            decode(self.engine, self.runner.random(1), self.steps)
        seconds = (time.perf_counter() - started) / self.steps
        self.engine.rewind(0, depth)
        return seconds

    def cost(self, drafts: int, depth: int) -> DraftCost:
        """Medians over the repeats, behind WARM_UP steps. The slot holds `depth` tokens before and after."""
        for _ in range(WARM_UP):
            self.verify(drafts)
        decode(self.engine, self.runner.random(1), 0 if drafts else WARM_UP)
        self.engine.rewind(0, depth)
        self.verify(drafts)
        device = statistics.median(self._device(drafts) for _ in range(self.repeats))
        step = statistics.median(self._step(drafts, depth) for _ in range(self.repeats))
        return DraftCost(depth, drafts, device, step)


def costs(
    runner: Runner, drafts: Sequence[int], depths: Sequence[int], steps: int, repeats: int
) -> Iterator[DraftCost]:
    """For each depth the step without draft tokens, then one for each number of them."""
    timed = DraftRunner(runner, steps, repeats)
    for depth in depths:
        runner.fresh(depth=depth)
        for n in (0, *drafts):
            yield timed.cost(n, depth)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--drafts", type=numbers, default=[1, 2, 3, 4, 7, 8, 15, 16])
    parser.add_argument("--depths", type=numbers, default=[128])
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    context = max(options.depths) + options.steps + max(options.drafts) + 1
    found: list[DraftCost] = []
    print("\n".join(HEAD), flush=True)
    with Model.load(options.model, device=options.device, slots=1, context=context) as model:
        runner = Runner(model.engine, model.arch.vocab)
        for cost in costs(runner, options.drafts, options.depths, options.steps, options.repeats):
            if not cost.drafts:
                single = cost
            print(cost.row(single), flush=True)
            found.append(cost)
    if options.json:
        options.json.write_text(json.dumps([asdict(c) for c in found], indent=1))


if __name__ == "__main__":
    with errors_in_one_line():
        main()
