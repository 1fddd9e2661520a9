"""Measures the kernels that can compute each step of a model's plans, within the plans themselves, where each
step has its own weights. The default kernel and an alternative run in turns; a step's time is the median over
its turns.

A program uses the n-th kernel for every step that has that many, so a plan needs few programs. A program
whose logits differ from the default's is discarded.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from satchel.errors import RequestError
from satchel.runtime.device.device import Device, KernelOverride
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.engine import Engine
from satchel.runtime.engine.program import Program
from satchel.runtime.graph import Array
from satchel.runtime.kernels.call import call_of
from satchel.runtime.plan import Plan, Segment
from satchel.runtime.tuning.kept import Tuned
from satchel.runtime.tuning.shape import shape_of

GAIN = 0.03  # least gain, as a share of a step's time; below it is noise, and the default kernel stays
ALIKE = 1e-2  # largest difference of logits: squared difference over the square
Times = list[list[list[int]]]  # nanoseconds of each step, by run and segment
Names = tuple[str, ...]
MeasureProgress = Callable[[int, int, str], None]  # (measurements done, all of them, what is measured now)
Places = Sequence[tuple[int, int]]  # (segment, step) of each step


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurement of the plan for this many tokens."""

    tokens: int
    own_us: float  # microseconds of all steps with the default kernels
    us: float  # microseconds of all steps with the best kernels
    steps: Mapping[str, Tuned]  # by step class
    doubted: int  # number of programs whose logits differed


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps of a plan that have several kernels."""

    kernels: Mapping[tuple[int, int], tuple[str, Names]]  # by (segment, step): the step class and its kernels

    @property
    def most(self) -> int:
        return max((len(names) for _, names in self.kernels.values()), default=1)

    def overrides(self, n: int, segment: int) -> tuple[KernelOverride, ...]:
        """Overrides to the n-th kernel, for steps that have that many."""
        found = sorted((i, names) for (s, i), (_, names) in self.kernels.items() if s == segment)
        return tuple(KernelOverride(i, names[n]) for i, names in found if n < len(names))


@dataclass(frozen=True, slots=True)
class _Runs:
    """Times of the default kernels alone, and of each alternative beside them."""

    steps: _Steps
    alone: Times
    taken: Mapping[int, tuple[Times, Times]]
    doubted: int  # number of alternatives that were discarded

    def share(self, k: int, where: Places) -> float:
        """Time of the k-th kernel over the default's; infinite if it was discarded."""
        if k not in self.taken:
            return float("inf")
        own, other = self.taken[k]
        return _usual(other, where) / max(1e-3, _usual(own, where))


def steps_of(plan: Plan, device: Device) -> _Steps:
    found = {}
    for s, segment in enumerate(plan.segments):
        for i in range(len(segment.step_table) if segment.device == device.name else 0):
            names = device.kernels(segment, i)
            if len(names) > 1:
                found[s, i] = (shape_of(call_of(segment, i)), names)
    return _Steps(found)


def measure(
    engine: Engine,
    device: Device,
    tokens: Sequence[int],
    repeats: int = 7,
    depths: Sequence[int] = (0,),
    progress: MeasureProgress = lambda done, total, what: None,
) -> Iterator[Measured]:
    """Measures steps of these numbers of tokens, after each of `depths` tokens in the cache: from that many
    slots if there are as many, else from one prompt. The device must have been opened with `profile`. The
    engine's slots are empty afterwards. progress: called before each measurement and after the last one.
    """
    if not device.profiled:
        raise RequestError(f"{device.name} was not opened with profile: it does not time its steps")
    total = len(tokens) * len(depths)
    for i, n in enumerate(tokens):
        slots = range(n if n <= engine.cache.slots else 1)
        runs = []
        for j, depth in enumerate(depths):
            progress(i * len(depths) + j, total, f"steps of {n} tokens behind {depth}")
            for slot in slots:
                for at in range(0, depth, engine.batch):
                    engine.step([BatchEntry(slot, _ids(min(engine.batch, depth - at)))])
            entries = [BatchEntry(slot, _ids(n // len(slots))) for slot in slots]
            runs.append(_measure(engine, device, entries, n, repeats))
            for slot in slots:
                engine.rewind(slot, 0)
        if i == len(tokens) - 1:
            progress(total, total, "")
        yield _judged(n, runs)


def _ids(n: int) -> list[int]:
    return [i % 97 + 1 for i in range(n)]


def _measure(engine: Engine, device: Device, entries: Sequence[BatchEntry], n: int, repeats: int) -> _Runs:
    filled = engine.fill(entries, n, "logits", every=True)
    steps = steps_of(filled.plan, device)
    own = _variant(engine, device, filled, steps, 0)
    try:
        logits, taken, doubted = _run(own), dict[int, tuple[Times, Times]](), 0
        alone = _turns([own], repeats)[0]
        for k in range(1, steps.most):
            other = _variant(engine, device, filled, steps, k)
            try:
                if _alike(_run(other), logits):
                    usual, found = _turns([own, other], repeats)
                    taken[k] = usual, found
                else:
                    doubted += 1
            finally:
                other.close()
    finally:
        own.close()
    return _Runs(steps, alone, taken, doubted)


def _less(a: Sequence[int], b: Sequence[int]) -> list[int]:
    return [x - y for x, y in zip(a, b, strict=True)]


def _turns(programs: Sequence[Program], repeats: int) -> list[Times]:
    """Times of the programs' runs, which alternate."""
    taken: list[Times] = [[] for _ in programs]
    for _ in range(repeats):
        for program, times in zip(programs, taken, strict=True):
            before = program.times()
            _run(program)
            times.append([_less(a, b) for a, b in zip(program.times(), before, strict=True)])
    return taken


def _variant(engine: Engine, device: Device, filled: Program, steps: _Steps, n: int) -> Program:
    """A program of the same plan and inputs with other kernels."""
    asked = {id(s): steps.overrides(n, i) for i, s in enumerate(filled.plan.segments)}
    usual = device.overrides_of

    def overrides_of(segment: Segment) -> tuple[KernelOverride, ...]:
        return asked.get(id(segment), ())

    device.overrides_of = overrides_of
    try:
        program = engine.make_program(filled.plan)
    finally:
        device.overrides_of = usual
    program.block[:] = filled.block
    return program


def _run(program: Program) -> Array:
    program.run()
    return program.read(np.empty(program.output_shape(), np.float32))


def _alike(found: Array, own: Array) -> bool:
    off = float(np.square(found - own, dtype=np.float64).sum())
    return off <= ALIKE * float(np.square(own, dtype=np.float64).sum())


def _judged(n: int, runs: Sequence[_Runs]) -> Measured:
    """The kernel that is fastest over all depths, and at no depth slower than the default."""
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    kernels = runs[0].steps.kernels
    for place, (shape, _) in kernels.items():
        places[shape].append(place)
    tuned = {}
    own = best = sum(_rest(r.steps, r.alone) for r in runs) / len(runs)
    for shape, where in places.items():
        names = kernels[where[0]][1]
        usual = sum(_usual(r.alone, where) for r in runs) / len(runs)
        shares = {0: 1.0}
        for k in range(1, len(names)):
            found = [r.share(k, where) for r in runs]
            shares[k] = sum(found) / len(found) if max(found) < 1 + GAIN / 2 else float("inf")
        fast = min(shares, key=lambda k: shares[k])
        fast = fast if shares[fast] < 1 - GAIN else 0
        tuned[shape] = Tuned(names[fast], names[0], round(usual * shares[fast], 3), round(usual, 3))
        own += usual * len(where)
        best += usual * shares[fast] * len(where)
    return Measured(n, own, best, tuned, sum(r.doubted for r in runs))


def _usual(runs: Times, where: Places) -> float:
    """Mean microseconds of these steps, each the median over its runs."""
    return statistics.mean(statistics.median(run[s][i] for run in runs) for s, i in where) / 1e3


def _rest(steps: _Steps, runs: Times) -> float:
    """Microseconds of the steps that have only one kernel."""
    chosen = steps.kernels
    sums = [sum(t for s, a in enumerate(r) for i, t in enumerate(a) if (s, i) not in chosen) for r in runs]
    return statistics.median(sums) / 1e3
