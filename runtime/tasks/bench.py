"""Times the step loop of real requests with random prompts and greedy answers, as llama-bench and
llama-batched-bench do.

A bucket's programs are compiled at its first step, and a machine's clocks and caches take a few more to
settle, so WARM_UP steps of each kind run before a test is timed. Repeats give a median and a deviation.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from satchel.errors import RequestError
from satchel.runtime.compiler.cost import CostModel, PlanCost, TokenSpan
from satchel.runtime.device.device import Device
from satchel.runtime.device.energy import Counters
from satchel.runtime.device.peaks import DevicePeaks
from satchel.runtime.engine.batch_entry import LAST, BatchEntry
from satchel.runtime.engine.engine import Engine, Launched
from satchel.runtime.engine.host_sampling import drawn
from satchel.runtime.engine.program import Program
from satchel.runtime.sampling import GREEDY

WARM_UP = 3  # steps of a prompt, and of decoding, before a test is timed
STEPS_ALONE = 24  # steps that are launched back to back to time the device alone
COUNTING = 1.0  # seconds of an energy measurement: counters update a few dozen times per second


def deviation(samples: Sequence[float]) -> float:
    """Standard deviation; 0 of one sample."""
    return statistics.stdev(samples) if len(samples) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Test:
    """A test. One of several sequences has no prompt: they decode together."""

    prompt: int  # tokens of the prompt
    generate: int  # tokens that are then decoded one by one
    depth: int = 0  # tokens in the cache before
    sequences: int = 1  # at a time, each with so many tokens

    @property
    def name(self) -> str:
        """llama-bench's name: pp512, tg128, pp512+tg128, with suffixes such as x16 and @ d4096."""
        parts = [f"{kind}{n}" for kind, n in (("pp", self.prompt), ("tg", self.generate)) if n]
        beside = f" x{self.sequences}" if self.sequences > 1 else ""
        return "+".join(parts) + beside + (f" @ d{self.depth}" if self.depth else "")

    @property
    def tokens(self) -> int:
        """Of all sequences."""
        return (self.prompt + self.generate) * self.sequences

    @property
    def context(self) -> int:
        """Positions of a sequence."""
        return self.prompt + self.generate + self.depth


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Result of one test."""

    test: Test
    samples: tuple[float, ...]  # tokens per second of each repeat
    cost: PlanCost  # bytes and multiply-adds of the whole test
    outside_c: float  # share of the time outside the C call
    waits: float | None = None  # idle seconds of the device per decode step; None: not measured
    joules: float | None = None  # per token; None: not measured

    @property
    def tokens_per_second(self) -> float:
        return statistics.median(self.samples)

    @property
    def deviation(self) -> float:
        return deviation(self.samples)

    @property
    def bytes_per_token(self) -> float:
        return self.cost.bytes / self.test.tokens

    @property
    def bytes_per_second(self) -> float:
        return self.bytes_per_token * self.tokens_per_second

    @property
    def macs_per_second(self) -> float:
        """Multiply-adds per second, attention included."""
        return self.cost.total / self.test.tokens * self.tokens_per_second

    def share_of_peak(self, peaks: DevicePeaks) -> float | None:
        """Least time of the multiply-adds at peak over the measured time; None if no peak is known."""
        least = peaks.least_seconds(self.cost)
        return least and least / self.test.tokens * self.tokens_per_second


def steps_of(test: Test, batch: int) -> Iterator[TokenSpan]:
    """The steps of a test, in order. Of a prompt's steps, only the last samples a token."""
    at, end = test.depth, test.depth + test.prompt
    for n in chunks(test.prompt, batch):
        at += n
        yield TokenSpan(n, at - n, int(at == end))
    for i in range(test.generate):
        yield TokenSpan(1, end + i, sequences=test.sequences)


def program_of(engine: Engine, span: TokenSpan) -> Program:
    """The program that computes a step."""
    return engine.program(span.tokens * span.sequences, span.sequences)


def cost_of(engine: Engine, test: Test) -> PlanCost:
    """Bytes and multiply-adds of a whole test."""
    whole = PlanCost()
    for cost in cost_by_device(engine, test).values():
        whole.add(cost)
    return whole


def cost_by_device(engine: Engine, test: Test) -> dict[str, PlanCost]:
    """Bytes and multiply-adds of a test on each of the model's devices."""
    costs, found = CostModel(engine), {name: PlanCost() for name in engine.devices}
    for span in steps_of(test, engine.batch):
        for device, cost in costs.plan(program_of(engine, span).plan, span):
            found.setdefault(device, PlanCost()).add(cost)
    return found


def bytes_by_device(engine: Engine, test: Test) -> dict[Device, float]:
    """Mean bytes that each device reads per token of a test."""
    found = cost_by_device(engine, test)
    return {engine.device_of(name): cost.bytes / test.tokens for name, cost in found.items()}


def chunks(count: int, most: int) -> Iterator[int]:
    """Sizes of the steps that compute `count` tokens."""
    for at in range(0, count, most):
        yield min(most, count - at)


def warm_ups(prompt: int, generate: int, batch: int) -> int:
    """Runs of so many tokens that make WARM_UP steps of a prompt and as many of decoding."""
    return -(-WARM_UP // min(n for n in (-(-prompt // batch), generate) if n))


def prefill(engine: Engine, prompts: Sequence[Sequence[int]]) -> list[int]:
    """Computes a prompt in each of the first slots, with full steps; gives each slot's next token."""
    found: list[int] = []
    waiting: list[BatchEntry] = []
    room = engine.batch
    for slot, ids in enumerate(prompts):
        at = 0
        while at < len(ids):
            n = min(room, len(ids) - at)
            last = at + n == len(ids)
            waiting.append(BatchEntry(slot, ids[at : at + n], GREEDY if last else None))
            at, room = at + n, room - n
            if not room:
                found += drawn(engine.step(waiting))
                waiting, room = [], engine.batch
    return found + (drawn(engine.step(waiting)) if waiting else [])


def decode(engine: Engine, tokens: list[int], count: int) -> list[int]:
    """Runs `count` decode steps over all slots. Like a service, it launches a step before it reads the tokens
    of the one before, if the engine can, and its entries stay the same from the second step on.
    """
    entries = [BatchEntry(slot, (token,), GREEDY) for slot, token in enumerate(tokens)]
    following = [BatchEntry(slot, (LAST,), GREEDY) for slot in range(len(tokens))]
    if not engine.overlaps:
        for _ in range(count):
            tokens, entries = drawn(engine.step(entries)), following
        return tokens
    under = deque[Launched]()
    for _ in range(count):
        under.append(engine.launch(entries))
        entries = following
        if len(under) > 1:
            tokens = drawn(engine.collect(under.popleft()))
    return drawn(engine.collect(under.popleft())) if under else tokens


class Runner:
    """An engine with random tokens to compute."""

    def __init__(self, engine: Engine, vocab: int, seed: int = 1) -> None:
        self.engine, self.vocab, self.rng = engine, vocab, np.random.default_rng(seed)

    def random(self, count: int) -> list[int]:
        ids: list[int] = self.rng.integers(0, self.vocab, count).tolist()
        return ids

    def fresh(self, slots: int = 1, depth: int = 0) -> None:
        """Empties the slots and computes `depth` tokens in each."""
        for slot in range(self.engine.cache.slots):
            self.engine.rewind(slot, 0)
        if depth:
            prefill(self.engine, [self.random(depth) for _ in range(slots)])

    def once(self, test: Test) -> tuple[float, float]:
        """Seconds of one run, and of its C calls."""
        self.fresh(test.sequences, test.depth)
        return self.timed(test)

    def timed(self, test: Test) -> tuple[float, float]:
        """The same, with the test's depth already in the cache."""
        ids, inside = self.random(test.prompt or test.sequences), self.engine.timing.inside
        started = time.perf_counter()
        first = prefill(self.engine, [ids]) if test.prompt else ids
        decode(self.engine, first, test.generate)
        return time.perf_counter() - started, self.engine.timing.inside - inside

    def warm_up(self, test: Test) -> None:
        """Runs the test's steps, with its answer cut short, until there were WARM_UP of each kind."""
        short = replace(test, generate=min(WARM_UP, test.generate), depth=min(1, test.depth))
        for _ in range(warm_ups(test.prompt, short.generate, self.engine.batch)):
            self.once(short)

    def check(self, test: Test) -> None:
        """Raises RequestError for a test that has no token or does not fit the context."""
        if not test.tokens:
            raise RequestError("a test of no token has no speed: give -p or -n")
        if test.context > self.engine.cache.context:
            have = self.engine.cache.context
            raise RequestError(f"{test.name} takes {test.context} tokens, the context holds {have}")

    def device_seconds(self, test: Test) -> float:
        """Seconds of the device for a step in the middle of a test's answer: the same step, launched back to
        back so that the device never waits.
        """
        count = test.sequences
        self.fresh(count, test.depth + test.prompt + test.generate // 2)
        self.engine.step([BatchEntry(slot, self.random(1), GREEDY) for slot in range(count)])
        program, out = self.engine.program(count, count), np.empty(count, np.int32)
        times = []
        for _ in range(3):
            started = time.perf_counter()
            for _ in range(STEPS_ALONE):
                program.run()
            program.read(out)
            times.append((time.perf_counter() - started) / STEPS_ALONE)
        return statistics.median(times)

    def joules(self, test: Test, counters: Counters) -> float | None:
        """Joules per token, measured over repetitions of the test; None without energy counters."""
        joules, seconds, runs = 0.0, 0.0, 0
        while counters.counters and seconds < COUNTING:
            self.fresh(test.sequences, test.depth)
            before = counters.read()
            seconds += self.timed(test)[0]
            joules, runs = joules + counters.since(before), runs + 1
        return joules / runs / test.tokens if runs else None

    def run(
        self, test: Test, repeats: int, warm_up: bool = True, counters: Counters | None = None
    ) -> BenchResult:
        """Times a test. counters: of energy, measured as well. Raises RequestError if the test does not fit
        the context.
        """
        self.check(test)
        if warm_up:
            self.warm_up(test)
        runs = [self.once(test) for _ in range(repeats)]
        seconds, inside = (sum(r[i] for r in runs) for i in (0, 1))
        samples = tuple(test.tokens / s for s, _ in runs)
        share = max(0.0, 1 - inside / seconds)
        waits = None
        if test.generate and not test.prompt:
            waits = max(0.0, test.sequences / statistics.median(samples) - self.device_seconds(test))
        joules = self.joules(test, counters) if counters else None
        return BenchResult(test, samples, cost_of(self.engine, test), share, waits, joules)


@dataclass(frozen=True, slots=True)
class Batched:
    """One line of llama-batched-bench: `pl` sequences of `pp` prompt tokens and `tg` generated ones, with the
    seconds of each part in each repeat.
    """

    pp: int
    tg: int
    pl: int
    t_pp: tuple[float, ...]
    t_tg: tuple[float, ...]

    def columns(self) -> dict[str, float | list[float]]:
        """Its columns, with llama-batched-bench's names: medians over the repeats. deviation_*, samples_*: of
        the speeds of all repeats.
        """
        t_pp, t_tg = statistics.median(self.t_pp), statistics.median(self.t_tg)
        tokens, prompts, answers = self.pl * (self.pp + self.tg), self.pl * self.pp, self.pl * self.tg
        whole = statistics.median(a + b for a, b in zip(self.t_pp, self.t_tg, strict=True))
        return {
            "pp": self.pp,
            "tg": self.tg,
            "pl": self.pl,
            "n_kv": tokens,
            "t_pp": t_pp,
            "speed_pp": prompts / t_pp,
            "deviation_pp": deviation([prompts / t for t in self.t_pp]),
            "t_tg": t_tg,
            "speed_tg": answers / t_tg,
            "deviation_tg": deviation([answers / t for t in self.t_tg]),
            "t": whole,
            "speed": tokens / whole,
            "samples_pp": [prompts / t for t in self.t_pp],
            "samples_tg": [answers / t for t in self.t_tg],
        }


def run_batched(
    runner: Runner,
    prompts: Sequence[int],
    generated: Sequence[int],
    parallel: Sequence[int],
    repeats: int,
    warm_up: bool = True,
) -> Iterator[Batched]:
    """Times every combination so many times, after WARM_UP steps of each kind."""
    for pp in prompts:
        for tg in generated:
            for pl in parallel:
                short = min(WARM_UP, tg)
                for _ in range(warm_ups(pl * pp, short, runner.engine.batch) if warm_up else 0):
                    _batch(runner, pp, short, pl)
                times = [_batch(runner, pp, tg, pl) for _ in range(repeats)]
                yield Batched(pp, tg, pl, *zip(*times, strict=True))


def _batch(runner: Runner, pp: int, tg: int, pl: int) -> tuple[float, float]:
    """Seconds of the prompts and of the answers."""
    runner.fresh()
    ids = [runner.random(pp) for _ in range(pl)]
    started = time.perf_counter()
    tokens = prefill(runner.engine, ids)
    middle = time.perf_counter()
    decode(runner.engine, tokens, tg)
    return middle - started, time.perf_counter() - middle
