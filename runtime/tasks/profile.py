"""Profile of a test: the device times each step of a plan; the cost model counts its bytes and multiply-adds.

Times are those of the device's first thread: if other threads finish a step later, the next step that waits
for them shows it. The call's time outside all steps is listed as the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from satchel.runtime.compiler.cost import CostModel, PlanCost, TokenSpan
from satchel.runtime.device.peaks import DevicePeaks
from satchel.runtime.engine.program import Program
from satchel.runtime.plan import PlanStep
from satchel.runtime.tasks.bench import Runner, Test, program_of, steps_of

LAYER = re.compile(r"\b(blk|k|v)\.\d+\b")


@dataclass(slots=True)
class ProfileLine:
    """Steps of one kind: number of runs, seconds and cost."""

    calls: int = 0
    seconds: float = 0.0
    cost: PlanCost = field(default_factory=PlanCost)

    def add(self, other: ProfileLine) -> None:
        self.calls += other.calls
        self.seconds += other.seconds
        self.cost.add(other.cost)

    def share_of_roof(self, peaks: DevicePeaks, read: float | None) -> float | None:
        """Share of the roofline: the least time of the cost over the measured time, None without
        multiply-adds. Reads, at `read` bytes per second, and computation overlap.
        """
        least = peaks.least_seconds(self.cost)
        if not self.seconds or not self.cost.macs or least is None or not read:
            return None
        return max(least, self.cost.bytes / read) / self.seconds


@dataclass(slots=True)
class Profile:
    """Profile of one test over all its repeats."""

    test: Test
    # By (op, weights with * for the layer number), in the order of the plan.
    lines: dict[tuple[str, str], ProfileLine]
    inside: float  # seconds within the C call
    whole: float  # seconds in all
    tokens: int  # in all repeats
    runs: int  # of plans, in all repeats

    def line(self, step: PlanStep) -> ProfileLine:
        """The line of a plan's step."""
        return self.lines.setdefault((step.op, group_of(step)), ProfileLine())

    def by_op(self) -> dict[str, ProfileLine]:
        """The lines summed over the weights of each op."""
        found: dict[str, ProfileLine] = {}
        for (op, _), line in self.lines.items():
            found.setdefault(op, ProfileLine()).add(line)
        return found

    def sums(self) -> dict[str, ProfileLine]:
        """Totals: of all lines, of the rest of the C call, of the time outside it, and of everything."""
        steps = self.total()
        return {
            "all steps": steps,
            "rest of the call": ProfileLine(self.runs, self.inside - steps.seconds),
            "outside C": ProfileLine(self.runs, self.whole - self.inside),
            "whole": ProfileLine(self.runs, self.whole, steps.cost),
        }

    def total(self) -> ProfileLine:
        """Sum of all lines."""
        found = ProfileLine()
        for line in self.lines.values():
            found.add(line)
        return found


def group_of(step: PlanStep) -> str:
    """A step's weights as a pattern such as "blk.*.ffn_gate, blk.*.ffn_up"; "" if it has none."""
    names = [name.rpartition(":")[0] for name in step.inputs if ".weight:" in name or ".bias:" in name]
    return ", ".join(LAYER.sub(r"\1.*", n.removesuffix(".weight")) for n in names)


def profile(runner: Runner, test: Test, repeats: int) -> Profile:
    """Profiles a test on a device that was opened with `profile`: one run to compile its plans, then
    `repeats` runs.
    """
    runner.check(test)
    runner.once(test)
    engine = runner.engine
    runs = [(program_of(engine, span), span) for span in steps_of(test, engine.batch)]
    programs = list({id(p): p for p, _ in runs}.values())
    found = Profile(test, {}, 0.0, 0.0, test.tokens * repeats, len(runs) * repeats)
    for _ in range(repeats):
        runner.fresh(test.sequences, test.depth)
        before = [p.times() for p in programs]
        whole, inside = runner.timed(test)
        found.whole, found.inside = found.whole + whole, found.inside + inside
        for program, start in zip(programs, before, strict=True):
            _add_times(found, program, start)
    costs = CostModel(engine)
    for program, span in runs:
        _add_cost(found, program, costs, span, repeats)
    return found


def _add_times(found: Profile, program: Program, before: Sequence[Sequence[int]]) -> None:
    for segment, old, new in zip(program.plan.segments, before, program.times(), strict=True):
        for step, start, end in zip(segment.steps, old, new, strict=True):
            found.line(step).seconds += (end - start) / 1e9


def _add_cost(found: Profile, program: Program, costs: CostModel, span: TokenSpan, repeats: int) -> None:
    """Adds the cost of one step of the test, which ran `repeats` times."""
    for segment in program.plan.segments:
        step_costs = costs.steps(segment, program.plan.bucket, span)
        for step, cost in zip(segment.steps, step_costs, strict=True):
            line = found.line(step)
            line.calls += repeats
            line.cost.add(cost.times(repeats))
