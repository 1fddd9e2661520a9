"""Steps with host-side sampling: the forward pass runs while a thread fills the token bitmasks; then
processors change logits; then all rows are sampled. Rows of other requests in the step are sampled as usual.

Only the sampling needs the tokens of the step before. So where steps overlap, such a step has two halves: its
forward pass is launched while the step before still runs, with LAST for tokens that nobody has read yet, and
sample() launches its sampling once they are read. In between no other program may run.

A step all of whose rows have the same bitmask and edits at each token (`HostSampling.fixed`, such as requests
with ignore_eos) waits for nothing: its step block is written once for as long as its rows stay the same, its
sampling follows its forward pass at once, and it gives plain tokens.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np

from satchel.errors import RequestError, SatchelError
from satchel.runtime.engine.batch_entry import BatchEntry
from satchel.runtime.engine.finite import damaged
from satchel.runtime.engine.host_sampling import HostSampling, Sampled, bitmask_size, undrawn
from satchel.runtime.engine.program import Program
from satchel.runtime.graph import Array
from satchel.runtime.layers.arch import Cache
from satchel.runtime.sampling import NONE, lost
from satchel.runtime.sampling.chain import MOST
from satchel.runtime.sampling.logprobs import Logprob, logprob_row, read_logprob

DRAWN, REPORT, LOGITS = 0, 1, 2  # indices of the plan's outputs


@dataclass(slots=True)
class HostSampledRow:
    """A row whose sampling waits for the host."""

    number: int  # index among the step's rows
    entry: BatchEntry
    host_sampling: HostSampling
    bitmask: Array | None = None  # tokens that its constraint allows
    masked: bool = False  # whether it has a token bitmask
    edits: int = 0  # number of its logit edits
    raw: Array | None = None  # its logits before processors
    failed: SatchelError | None = None  # why it has no token

    @contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Turns an exception of the caller's own code into a failure of this row alone."""
        try:
            yield
        except Exception as error:
            self.fail(f"{what} failed: {type(error).__name__}: {error}")

    def fail(self, text: str) -> None:
        self.refuse(RequestError(text))

    def refuse(self, error: SatchelError) -> None:
        self.failed = self.failed or error


@dataclass(slots=True)
class HostSampledStep:
    """A step in flight."""

    program: Program
    rows: list[HostSampledRow]  # those that wait for the host
    count: int  # of all rows that the step samples
    fixed: int = 0  # bytes of the step block that the sampling reads, where no row waits for tokens; else 0
    sampled: bool = False  # the sampling was launched
    inside: float = 0.0  # seconds from there on, as Launched has them


class StepEngine(Protocol):
    """What host-side sampling needs of an engine."""

    cache: Cache
    source: str

    def fill(self, entries: Sequence[BatchEntry], rows: int, output: str, *, every: bool) -> Program: ...


class HostSamplingSteps:
    """Runs steps of the engine that have such rows."""

    def __init__(self, engine: StepEngine) -> None:
        self.engine = engine
        self._filler: ThreadPoolExecutor | None = None

    def fill(self, entries: Sequence[BatchEntry]) -> HostSampledStep:
        """Writes the step block, but for what the rows' sampling needs."""
        firsts = list(accumulate((e.rows for e in entries), initial=0))
        program = self.engine.fill(entries, firsts[-1], "host_sampling", every=False)
        of, size = program.fixed  # of the last step's rows
        if program.rows is of:
            return HostSampledStep(program, [], firsts[-1], size)
        rows = [
            HostSampledRow(first + i, entry, entry.host_sampling)
            for first, entry in zip(firsts, entries, strict=False)
            if entry.host_sampling is not None
            for i in range(entry.rows)
        ]
        step = HostSampledStep(program, rows, firsts[-1])
        if all(row.host_sampling.fixed for row in rows):
            self._prepare(step)
            step.fixed = self._between(step, None)
            if not any(row.failed for row in rows):  # else its row says why
                program.fixed = program.rows, step.fixed
        return step

    def run(self, step: HostSampledStep) -> tuple[list[int | Sampled], float]:
        """Runs the whole step; gives its tokens, and the perf_counter time at which the device began."""
        if not step.fixed:
            self._prepare(step)
        masks, constrained = None, self._constrained(step)
        if constrained:
            if self._filler is None:
                self._filler = ThreadPoolExecutor(1, "satchel-masks")
            masks = self._filler.submit(self._fill_masks, step, constrained)
        began = time.perf_counter()
        step.program.run(lambda: step.fixed or self._between(step, masks))
        found = self._results(step)
        step.inside = time.perf_counter() - began
        return found, began

    def run_at_once(self, step: HostSampledStep) -> None:
        """Launches the whole of a step whose sampling is fixed."""
        step.program.run_at_once(step.fixed)
        step.sampled = True

    def sample(self, step: HostSampledStep, ended: Collection[int]) -> None:
        """Launches the sampling, once; the tokens of the step before have been read. ended: slots whose
        sequences ended with them: their requests' own code is called no more.
        """
        if step.sampled:
            return
        before = time.perf_counter()
        if not step.fixed:
            step.rows = [row for row in step.rows if row.entry.slot not in ended]
            self._prepare(step)
            before = time.perf_counter()
            if constrained := self._constrained(step):
                self._fill_masks(step, constrained)  # the device runs the forward pass meanwhile
        step.program.run_sampling(step.fixed or self._between(step, None))
        step.inside += time.perf_counter() - before
        step.sampled = True

    def collect(self, step: HostSampledStep) -> list[int | Sampled]:
        """Waits for a launched step and gives its tokens; none where the sampling was never launched."""
        if not step.sampled:
            step.program.wait_forward()
            return []
        before = time.perf_counter()
        found = self._results(step)
        step.inside += time.perf_counter() - before
        return found

    def close(self) -> None:
        if self._filler is not None:
            self._filler.shutdown()

    def _prepare(self, step: HostSampledStep) -> None:
        """Fills in what the tokens so far say of the rows."""
        for row in step.rows:
            self._prepare_row(step.program, row)

    def _prepare_row(self, program: Program, row: HostSampledRow) -> None:
        params, edits, host, i = (
            program.fields["params"],
            program.fields["edits"],
            row.host_sampling,
            row.number,
        )
        biases, dry_penalties = host.edits(row.entry.past, self.engine.cache.context)
        listed = [*biases, *dry_penalties]
        if listed:
            edits[i, : len(listed), 0] = [t for t, _ in listed]
            edits[i, : len(listed), 1] = np.array([a for _, a in listed], np.float32).view(np.int32)
        mask = host.mask(row.entry.past, vocabulary_of(program))
        program.sampled = []  # the records get values of this row
        params["biases"][i], params["dry_penalties"][i] = len(biases), len(dry_penalties)
        row.masked, row.edits = mask is not None or host.request.constraint is not None, len(listed)
        params["masked"][i] = row.masked
        params["report"][i], params["mirostat_mu"][i] = host.reports, host.mu
        if row.masked:
            program.fields["token_bitmask"][i].view(np.uint32)[:] = 0xFFFFFFFF if mask is None else mask

    def _constrained(self, step: HostSampledStep) -> list[HostSampledRow]:
        return [row for row in step.rows if row.host_sampling.request.constraint is not None]

    def _fill_masks(self, step: HostSampledStep, rows: Sequence[HostSampledRow]) -> None:
        """Has the constraints of these rows fill their token bitmasks."""
        size = bitmask_size(vocabulary_of(step.program))
        for row in rows:
            row.bitmask = np.zeros(size, np.uint32)
            with row.guarded("the constraint"):
                row.host_sampling.fill(row.bitmask)

    def _between(self, step: HostSampledStep, masks: Future[None] | None) -> int:
        """After the forward pass: puts bitmasks into the step block, and changed logits to the device. Gives
        the bytes of the step block that the sampling reads. masks: what fills the bitmasks, if they are not
        filled yet.
        """
        if masks is not None:
            masks.result()
        masked = edited = 0  # rows up to the last one that has a bitmask, or edits
        for row in step.rows:
            if row.masked:
                masked = row.number + 1
                self._mask(step.program, row)
            if row.edits:
                edited = row.number + 1
            if row.host_sampling.request.logits_processors and not row.failed:
                self._process(step.program, row)
        return step.program.end_of(*(("edits", edited) if edited else ("token_bitmask", masked)))

    def _mask(self, program: Program, row: HostSampledRow) -> None:
        """Puts what the row's constraint allows into its token bitmask."""
        bitmask = program.fields["token_bitmask"][row.number].view(np.uint32)
        if row.bitmask is not None and not row.failed:
            bitmask &= row.bitmask
        if not bitmask.any():
            row.fail("masks and the constraint together allow no token")

    def _process(self, program: Program, row: HostSampledRow) -> None:
        """Runs the request's processors on its logits (V)."""
        row.raw = program.output(LOGITS, row.number, np.empty(vocabulary_of(program), np.float32))
        logits, past = row.raw.copy(), list(row.entry.past)
        if lost(logits):
            row.refuse(damaged(self.engine.source, "logits"))
            return
        with row.guarded("a logits processor"):
            for processor in row.host_sampling.request.logits_processors:
                given = processor(past, logits)
                logits = logits if given is None else np.asarray(given, np.float32)
                if logits.shape != row.raw.shape:
                    raise RequestError(f"it gave logits of shape {logits.shape}, not {row.raw.shape}")
            # NaN from a processor forbids the token; +inf becomes the largest finite logit.
            logits = np.nan_to_num(logits, nan=-np.inf, posinf=float(MOST), neginf=-np.inf)
            if lost(logits):
                raise RequestError("it left no token that may come")
            program.output(LOGITS, row.number, np.ascontiguousarray(logits), write=True)

    def _results(self, step: HostSampledStep) -> list[int | Sampled]:
        program, count = step.program, step.count
        pairs = program.read(np.empty((max(1, count), 2), np.int32))[:count]
        found: list[int | Sampled] = pairs[:, 0].tolist()
        if step.fixed and not any(row.failed for row in step.rows):  # no state follows from a token
            return (
                [undrawn(self.engine.source) if t == NONE else t for t in found] if NONE in found else found
            )
        nll_bits = pairs[:, 1].copy().view(np.float32)
        for row in step.rows:
            token, bits = int(pairs[row.number, 0]), float(nll_bits[row.number])
            if token == NONE:
                row.refuse(damaged(self.engine.source, "logits"))
            if not row.failed:
                with row.guarded("the constraint"):
                    row.host_sampling.took(token, bits)
            report = self._report(program, row, token) if token != NONE else None
            found[row.number] = Sampled(token, report, bits, row.failed)
        return [undrawn(self.engine.source) if t == NONE else t for t in found] if NONE in found else found

    def _report(self, program: Program, row: HostSampledRow, token: int) -> Logprob | None:
        k = row.host_sampling.request.logprobs
        if k < 0:
            return None
        if row.raw is not None:  # what the device has was changed
            return read_logprob(logprob_row(row.raw, token, max(1, k)), token, k)
        out = np.empty(width_of(program, REPORT), np.float32)
        return read_logprob(program.output(REPORT, row.number, out), token, k)


def width_of(program: Program, output: int) -> int:
    width = program.plan.outputs[output].type.shape[-1]
    return width if isinstance(width, int) else 0


def vocabulary_of(program: Program) -> int:
    return width_of(program, LOGITS)
